// Alerts: limits that a reader sets are kept in this browser, and compared with every forecast that the page
// shows. An alert notifies when its value rises above the limit, and again only after it was below.
import { onPart, present } from "/page.js";

const KEY = "v8-alerts";
const EVERY = "*";
const MAX_ALERTS = 50;
const MAX_LINES = 5;  // of what is above a limit: of a thousand series it may be hundreds
const field = (id) => document.getElementById(id);
const box = field("alerts");

const KINDS = [...field("alert-kind").options].map((option) => option.value);
const isAlert = (rule) => rule && typeof rule.series === "string" && KINDS.includes(rule.kind) &&
  Number.isFinite(rule.limit);
const read = () => {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY)) || {};
    return { rules: (kept.rules || []).filter(isAlert).slice(0, MAX_ALERTS), above: kept.above || {} };
  } catch {
    return { rules: [], above: {} };
  }
};
let state = read();
const keep = () => { try { localStorage.setItem(KEY, JSON.stringify(state)); } catch { /* lasts until the page closes */ } };

const element = (tag, ...children) => {
  const node = document.createElement(tag);
  node.append(...children);
  return node;
};
const percent = (share) => (100 * share).toFixed(3);
const sentence = ({ kind, limit }, series, value) => box.dataset[kind]
  .replace("{series}", series).replace("{value}", value).replace("{limit}", limit);

const canNotify = () => "Notification" in window && Notification.permission === "granted";
const sayRefused = () => {
  const isRefused = state.rules.length > 0 && !canNotify();
  field("alert-refused").textContent = isRefused ? box.dataset.refused : "";
};
const shortened = (texts) => (texts.length <= MAX_LINES ? texts :
  [...texts.slice(0, MAX_LINES), box.dataset.more.replace("{n}", texts.length - MAX_LINES)]);
const notify = (texts) => {
  if (!texts.length || !canNotify()) return;
  const text = shortened(texts).join("\n");
  try { new Notification("v8", { body: text, tag: text }); }
  catch { field("alert-refused").textContent = box.dataset.refused; }  // some telephones refuse all of a page
};

const check = () => {
  const above = {};
  const sentences = [];
  const news = [];
  for (const { dataset } of present.querySelectorAll("[data-series]")) {
    for (const rule of state.rules) {
      if (![EVERY, dataset.series].includes(rule.series) || dataset[rule.kind] === undefined) continue;
      const key = [rule.kind, rule.limit, dataset.series].join(" ");
      if (!(100 * Number(dataset[rule.kind]) > rule.limit)) continue;
      const text = sentence(rule, dataset.series, percent(dataset[rule.kind]));
      above[key] = true;
      sentences.push(text);
      if (!state.above[key]) news.push(text);
    }
  }
  // What this page does not show, such as other series, stays as it was.
  const isShown = (key) => present.querySelector(`[data-series="${CSS.escape(key.split(" ").pop())}"]`);
  for (const key of Object.keys(state.above)) if (!isShown(key)) above[key] = true;
  state.above = above;
  keep();
  notify([...new Set(news)]);
  const texts = shortened([...new Set(sentences)]);
  if (texts.join() !== [...field("alert-now").children].map((item) => item.textContent).join()) {
    field("alert-now").replaceChildren(...texts.map((text) => element("li", text)));
  }
};

const list = () => {
  field("alert-count").textContent = state.rules.length || "";
  field("alert-list").replaceChildren(...state.rules.map((rule, at) => {
    const name = rule.series === EVERY ? box.dataset.every : rule.series;
    const kind = field("alert-kind").querySelector(`[value=${rule.kind}]`).textContent;
    const remove = element("button", box.dataset.remove);
    remove.addEventListener("click", () => {
      state.rules.splice(at, 1);
      update();
    });
    return element("li", `${name}: ${kind} > ${rule.limit} % `, remove);
  }));
};
const update = () => { list(); sayRefused(); check(); };

const offerSeries = () => {
  if (!box.open) return;  // of a thousand series the choice is made when somebody looks at it
  const names = [...present.querySelectorAll("[data-series]")].map(({ dataset }) => dataset.series).sort();
  const select = field("alert-series");
  const offered = [...select.options].map((option) => option.value);
  const wanted = names.length > 1 ? [EVERY, ...names] : names;
  if (wanted.join() === offered.join()) return;
  select.replaceChildren(...wanted.map((name) => new Option(name === EVERY ? box.dataset.every : name, name)));
};

field("alert-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const limit = Number(field("alert-limit").value);
  const rule = { series: field("alert-series").value, kind: field("alert-kind").value, limit };
  if (!isAlert(rule) || !rule.series || state.rules.length >= MAX_ALERTS) return;
  state.rules.push(rule);
  keep();
  list();
  // Browsers ask the reader, and only after a click.
  if ("Notification" in window && Notification.permission === "default") await Notification.requestPermission();
  update();
});
addEventListener("storage", ({ key }) => { if (key === KEY) { state = read(); list(); } });
box.hidden = false;
box.addEventListener("toggle", offerSeries);
const link = field("to-alerts");
if (link) link.hidden = false;
link?.addEventListener("click", () => { box.open = true; });
list();
sayRefused();
onPart(() => { offerSeries(); check(); });
