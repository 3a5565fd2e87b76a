"use strict";
(() => {
  const root = document.documentElement;
  root.dataset.errors = root.dataset.shown = 0;
  const count = (name) => { root.dataset[name] = Number(root.dataset[name]) + 1; };
  addEventListener("error", () => count("errors"));
  addEventListener("unhandledrejection", () => count("errors"));
  addEventListener("securitypolicyviolation", () => count("errors"));

  const overflow = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach(({ target }) =>
    target.classList.toggle("cut", target.scrollWidth > target.clientWidth))));
  const watch = (where) => where.querySelectorAll(".scroll").forEach((box) => overflow.observe(box));
  watch(document);

  // Links keep the language that the address requests.
  const requestedLanguage = new URLSearchParams(location.search).get("lang");
  const keepLanguage = (where) => requestedLanguage && where.querySelectorAll("a[href^='/']").forEach((link) => {
    link.search = "?lang=" + encodeURIComponent(requestedLanguage);
  });
  keepLanguage(document);

  const present = document.getElementById("present");
  const status = document.getElementById("status");
  const searchField = document.getElementById("sought");
  const MAX_PAUSE_S = 60;
  let tag = `"${present.dataset.tag}"`;

  const say = (text, isShown) => {
    if (status.textContent !== text) status.textContent = text;
    status.classList.toggle("quiet", !isShown);
  };

  // The overview: tiles are searched by name, and arrow keys move between them.
  const links = () => [...present.querySelectorAll("li:not([hidden]) > a")];
  const find = () => {
    const words = searchField.value.trim().toLowerCase();
    present.querySelectorAll("li").forEach((tile) => {
      tile.hidden = !tile.querySelector("h2").textContent.toLowerCase().includes(words);
    });
    if (words) say(searchField.dataset.found.replace("{n}", links().length), true);
    else say(present.querySelector("[data-status]").dataset.status, false);
  };
  const moveFocus = (event) => {
    const tiles = links();
    const at = tiles.indexOf(document.activeElement);
    const place = tiles.map((tile) => tile.getBoundingClientRect());
    const perRow = Math.max(1, place.filter(({ top }) => Math.abs(top - place[0].top) < 2).length);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow, ArrowUp: -perRow }[event.key];
    if (at < 0) tiles[0]?.focus();
    else if (at + step >= 0) tiles[Math.min(at + step, tiles.length - 1)].focus();
    else searchField.focus();
    event.preventDefault();
  };
  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isSearching = document.activeElement === searchField;
    if (event.key === "/" && !isSearching) {
      searchField.focus();
      searchField.select();
      event.preventDefault();
    } else if (event.key === "Escape" && isSearching) {
      searchField.value = "";
      find();
    } else if (event.key === "Enter" && isSearching) {
      links()[0]?.click();
      event.preventDefault();
    } else if (/^Arrow(Up|Down)$/.test(event.key) || (/^Arrow/.test(event.key) && !isSearching)) {
      if (isSearching || present.contains(document.activeElement)) moveFocus(event);
    }
  };
  if (searchField) {
    searchField.form.querySelector("button").hidden = true;
    searchField.addEventListener("input", find);
    addEventListener("keydown", onKey);
  }

  const updateStatus = () => {
    if (searchField) find();
    else say(present.querySelector("[data-status]").dataset.status, false);
  };
  const replace = (text) => {
    const focusedAddress = document.activeElement?.getAttribute("href");
    const open = [...present.querySelectorAll("details")].map((fold) => fold.open);
    overflow.disconnect();
    present.innerHTML = text;
    watch(document);
    keepLanguage(present);
    present.querySelectorAll("details").forEach((fold, at) => { fold.open = Boolean(open[at]); });
    links().find((tile) => tile.getAttribute("href") === focusedAddress)?.focus({ preventScroll: true });
    updateStatus();
  };
  const seconds = (answer) => {
    const header = answer.headers.get("retry-after") ||
      (/max-age=(\d+)/.exec(answer.headers.get("cache-control") || "") || [])[1];
    return Math.min(MAX_PAUSE_S, Math.max(1, Number(header) || MAX_PAUSE_S));
  };
  const requestPart = async () => {
    const answer = await fetch(present.dataset.part, {
      cache: "no-store", headers: tag ? { "If-None-Match": tag } : {}, signal: AbortSignal.timeout(45000) });
    if (answer.status === 401) {
      location.reload();  // the server then asks for the token
      return MAX_PAUSE_S;
    }
    const isPart = (answer.headers.get("content-type") || "").startsWith("text/html");
    if (isPart && answer.status !== 304) {
      tag = answer.status === 200 ? answer.headers.get("etag") || "" : "";
      replace(await answer.text());
    } else if (answer.status !== 304) {
      say(status.dataset.away, true);  // such as too many requests: the part that is shown stays
    }
    count("shown");
    return seconds(answer);
  };
  const show = async () => {
    present.setAttribute("aria-busy", "true");
    let next_s = 10;
    try { next_s = await requestPart(); }
    catch { say(status.dataset.away, true); tag = ""; }
    present.removeAttribute("aria-busy");
    setTimeout(show, 1000 * next_s);
  };
  updateStatus();
  show();
})();
