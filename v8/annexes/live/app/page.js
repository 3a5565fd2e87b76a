// What all pages share: errors are counted, and the part of the page that changes is requested again when the
// next candle has closed. Other scripts import `onPart` to look at each part that is shown.
const root = document.documentElement;
root.dataset.errors = root.dataset.shown = 0;
const count = (name) => { root.dataset[name] = Number(root.dataset[name]) + 1; };
addEventListener("error", () => count("errors"));
addEventListener("unhandledrejection", () => count("errors"));
addEventListener("securitypolicyviolation", () => count("errors"));

const overflow = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach(({ target }) =>
  target.classList.toggle("cut", target.scrollWidth > target.clientWidth))));
const watch = (where) => where.querySelectorAll(".scroll").forEach((box) => overflow.observe(box));

// Links keep the language that the address requests.
const requestedLanguage = new URLSearchParams(location.search).get("lang");
const keepLanguage = (where) => requestedLanguage && where.querySelectorAll("a[href^='/']").forEach((link) => {
  link.search = "?lang=" + encodeURIComponent(requestedLanguage);
});

export const present = document.getElementById("present");
const status = document.getElementById("status");
const MAX_PAUSE_S = 60;
let tag = `"${present.dataset.tag}"`;

export const say = (text, isShown) => {
  if (status.textContent !== text) status.textContent = text;
  status.classList.toggle("quiet", !isShown);
};
const listeners = [];
let isStarted = false;
/** Call a function with every part that is shown, from the first one on; it returns a status text or nothing. */
export const onPart = (listener) => {
  listeners.push(listener);
  if (isStarted) listener();
};
const sayStatus = () => say(present.querySelector("[data-status]")?.dataset.status || "", false);

const replace = (text) => {
  const focusedAddress = document.activeElement?.getAttribute("href");
  const open = [...present.querySelectorAll("details")].map((fold) => fold.open);
  overflow.disconnect();
  present.innerHTML = text;
  watch(document);
  keepLanguage(present);
  present.querySelectorAll("details").forEach((fold, at) => { fold.open = Boolean(open[at]); });
  sayStatus();
  listeners.forEach((listener) => listener());
  if (focusedAddress) {
    [...present.querySelectorAll("li:not([hidden]) > a")]
      .find((tile) => tile.getAttribute("href") === focusedAddress)?.focus({ preventScroll: true });
  }
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
const start = () => {
  watch(document);
  keepLanguage(document);
  sayStatus();
  isStarted = true;
  listeners.forEach((listener) => listener());
  show();
};
// Scripts that import this one run after it, and before the page is complete.
if (document.readyState === "complete") start();
else addEventListener("DOMContentLoaded", start);
