"use strict";
(() => {
  const root = document.documentElement;
  root.dataset.errors = root.dataset.shown = 0;
  const count = (name) => { root.dataset[name] = Number(root.dataset[name]) + 1; };
  addEventListener("error", () => count("errors"));
  addEventListener("unhandledrejection", () => count("errors"));
  addEventListener("securitypolicyviolation", () => count("errors"));

  const select = document.getElementById("series");
  const present = document.getElementById("present");
  const status = document.getElementById("status");
  const MOST_S = 60;
  let timer = 0, turn = 0, tag = "";

  const cut = new ResizeObserver((seen) => requestAnimationFrame(() => seen.forEach(({ target }) =>
    target.classList.toggle("cut", target.scrollWidth > target.clientWidth))));
  const watch = (where) => where.querySelectorAll(".scroll").forEach((box) => cut.observe(box));

  const seconds = (answer) => {
    const told = answer.headers.get("retry-after") ||
      (/max-age=(\d+)/.exec(answer.headers.get("cache-control") || "") || [])[1];
    return Math.min(MOST_S, Math.max(1, Number(told) || MOST_S));
  };
  const say = (text, isShownBelow) => {
    status.textContent = text;
    status.classList.toggle("quiet", isShownBelow);
  };
  const ask = async (name, mine) => {
    const answer = await fetch("/part/" + encodeURIComponent(name), {
      cache: "no-store", signal: AbortSignal.timeout(45000) });
    const text = await answer.text();
    if (mine !== turn) return 0;
    const found = name + " " + (answer.headers.get("etag") || answer.status);
    if (found !== tag) {
      tag = found;
      cut.disconnect();
      present.innerHTML = text;
      watch(document);
      say(present.querySelector("[data-status]").dataset.status, true);
    }
    count("shown");
    return seconds(answer);
  };
  const show = async (name) => {
    const mine = ++turn;
    clearTimeout(timer);
    present.setAttribute("aria-busy", "true");
    let next_s = 10;
    try { next_s = await ask(name, mine); }
    catch { if (mine === turn) { say("The server does not answer; trying again.", false); tag = ""; } }
    if (mine !== turn) return;
    present.removeAttribute("aria-busy");
    timer = setTimeout(() => show(name), 1000 * next_s);
  };

  document.getElementById("choose").querySelector("button").hidden = true;
  select.addEventListener("change", () => {
    history.replaceState(null, "", "/?series=" + encodeURIComponent(select.value));
    say(select.value + ": asking for the forecast.", false);
    show(select.value);
  });
  watch(document);
  show(select.value);
})();
