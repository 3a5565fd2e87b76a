"use strict";
(() => {
  const root = document.documentElement;
  root.dataset.errors = root.dataset.shown = 0;
  const count = (name) => { root.dataset[name] = Number(root.dataset[name]) + 1; };
  addEventListener("error", () => count("errors"));
  addEventListener("unhandledrejection", () => count("errors"));
  addEventListener("securitypolicyviolation", () => count("errors"));

  const cut = new ResizeObserver((seen) => requestAnimationFrame(() => seen.forEach(({ target }) =>
    target.classList.toggle("cut", target.scrollWidth > target.clientWidth))));
  const watch = (where) => where.querySelectorAll(".scroll").forEach((box) => cut.observe(box));
  watch(document);

  // A language that was asked for is asked for again wherever a link leads.
  const asked = new URLSearchParams(location.search).get("lang");
  const lead = (where) => asked && where.querySelectorAll("a[href^='/']").forEach((link) => {
    link.search = "?lang=" + encodeURIComponent(asked);
  });
  lead(document);

  const present = document.getElementById("present");
  const status = document.getElementById("status");
  const sought = document.getElementById("sought");
  const MOST_S = 60;
  let tag = `"${present.dataset.tag}"`;

  const say = (text, isShown) => {
    if (status.textContent !== text) status.textContent = text;
    status.classList.toggle("quiet", !isShown);
  };

  // The overview: tiles are found by name, and walked through by arrows.
  const links = () => [...present.querySelectorAll("li:not([hidden]) > a")];
  const find = () => {
    const words = sought.value.trim().toLowerCase();
    present.querySelectorAll("li").forEach((tile) => {
      tile.hidden = !tile.querySelector("h2").textContent.toLowerCase().includes(words);
    });
    if (words) say(sought.dataset.found.replace("{n}", links().length), true);
    else say(present.querySelector("[data-status]").dataset.status, false);
  };
  const walk = (event) => {
    const tiles = links();
    const at = tiles.indexOf(document.activeElement);
    const place = tiles.map((tile) => tile.getBoundingClientRect());
    const perRow = Math.max(1, place.filter(({ top }) => Math.abs(top - place[0].top) < 2).length);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow, ArrowUp: -perRow }[event.key];
    if (at < 0) tiles[0]?.focus();
    else if (at + step >= 0) tiles[Math.min(at + step, tiles.length - 1)].focus();
    else sought.focus();
    event.preventDefault();
  };
  const press = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isSearching = document.activeElement === sought;
    if (event.key === "/" && !isSearching) {
      sought.focus();
      sought.select();
      event.preventDefault();
    } else if (event.key === "Escape" && isSearching) {
      sought.value = "";
      find();
    } else if (event.key === "Enter" && isSearching) {
      links()[0]?.click();
      event.preventDefault();
    } else if (/^Arrow(Up|Down)$/.test(event.key) || (/^Arrow/.test(event.key) && !isSearching)) {
      if (isSearching || present.contains(document.activeElement)) walk(event);
    }
  };
  if (sought) {
    sought.form.querySelector("button").hidden = true;
    sought.addEventListener("input", find);
    addEventListener("keydown", press);
  }

  const tell = () => {
    if (sought) find();
    else say(present.querySelector("[data-status]").dataset.status, false);
  };
  const replace = (text) => {
    const held = document.activeElement?.getAttribute("href");
    const open = [...present.querySelectorAll("details")].map((fold) => fold.open);
    cut.disconnect();
    present.innerHTML = text;
    watch(document);
    lead(present);
    present.querySelectorAll("details").forEach((fold, at) => { fold.open = Boolean(open[at]); });
    links().find((tile) => tile.getAttribute("href") === held)?.focus({ preventScroll: true });
    tell();
  };
  const seconds = (answer) => {
    const told = answer.headers.get("retry-after") ||
      (/max-age=(\d+)/.exec(answer.headers.get("cache-control") || "") || [])[1];
    return Math.min(MOST_S, Math.max(1, Number(told) || MOST_S));
  };
  const ask = async () => {
    const answer = await fetch(present.dataset.part, {
      cache: "no-store", headers: tag ? { "If-None-Match": tag } : {}, signal: AbortSignal.timeout(45000) });
    if (answer.status === 401) {
      location.reload();  // where the token is asked for
      return MOST_S;
    }
    const isPart = (answer.headers.get("content-type") || "").startsWith("text/html");
    if (isPart && answer.status !== 304) {
      tag = answer.status === 200 ? answer.headers.get("etag") || "" : "";
      replace(await answer.text());
    } else if (answer.status !== 304) {
      say(status.dataset.away, true);  // as when too much is asked: what is shown stays
    }
    count("shown");
    return seconds(answer);
  };
  const show = async () => {
    present.setAttribute("aria-busy", "true");
    let next_s = 10;
    try { next_s = await ask(); }
    catch { say(status.dataset.away, true); tag = ""; }
    present.removeAttribute("aria-busy");
    setTimeout(show, 1000 * next_s);
  };
  tell();
  show();
})();
