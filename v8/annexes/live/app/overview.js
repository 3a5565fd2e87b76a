// The overview: tiles are filtered and ordered without a request, and arrow keys move between them.
import { onPart, present, say } from "/page.js";

const form = document.querySelector("form[role=search]");
const field = (id) => document.getElementById(id);
const searchField = field("sought");
const toggle = field("toggle");
const VIEW_KEY = "v8-view";

const links = () => [...present.querySelectorAll(".tiles > li:not([hidden]) > a")];
const number = (value) => (value === undefined ? -Infinity : Number(value));
const byName = (a, b) => (a.dataset.series < b.dataset.series ? -1 : 1);
const descending = (key) => (a, b) => number(b.dataset[key]) - number(a.dataset[key]) || byName(a, b);
const ORDERS = {
  wild: descending("percentile"), series: byName, change: descending("change"), volatility: descending("volatility"),
};

const filter = () => {
  const words = searchField.value.trim().toLowerCase();
  const isFiltered = words || field("timeframe").value || field("mood").value;
  const isWanted = ({ series, timeframe, mood }) => series.toLowerCase().includes(words) &&
    ["", timeframe].includes(field("timeframe").value) && ["", mood].includes(field("mood").value);
  present.querySelectorAll(".tiles > li").forEach((tile) => { tile.hidden = !isWanted(tile.dataset); });
  if (isFiltered) say(searchField.dataset.found.replace("{n}", links().length), true);
  else say(present.querySelector("[data-status]").dataset.status, false);
};
const arrange = () => {
  const list = present.querySelector(".tiles");
  const before = [...list.children];
  const after = [...before].sort(ORDERS[field("order").value]);
  if (after.some((tile, at) => tile !== before[at])) list.append(...after);
};
const showView = () => {
  const isTable = field("view").value === "table";
  present.querySelector(".tiles").classList.toggle("table", isTable);
  toggle.textContent = isTable ? toggle.dataset.tiles : toggle.dataset.table;
  toggle.setAttribute("aria-pressed", isTable);
};
// The address has what was chosen, so that a reader who comes back, or sends it to somebody, sees the same.
const writeAddress = () => {
  const query = new URLSearchParams(location.search);
  new FormData(form).forEach((value, name) => {
    if (value && !(name === "order" && value === "wild")) query.set(name, value);
    else query.delete(name);
  });
  history.replaceState(null, "", location.pathname + (query.size ? `?${query}` : ""));
};
// A wide table has two columns, see page.css: the first half of the rows stands in the first one.
const numRows = () => Math.ceil(links().length / 2);
const showColumns = () => {
  const board = present.querySelector(".board");
  board?.classList.add("down");
  board?.style.setProperty("--rows", Math.max(1, numRows()));
};
const show = () => { showView(); arrange(); filter(); showColumns(); };

const moveFocus = (event) => {
  const tiles = links();
  const at = tiles.indexOf(document.activeElement);
  const place = tiles.map((tile) => tile.getBoundingClientRect());
  const perRow = Math.max(1, place.filter(({ top }) => Math.abs(top - place[0].top) < 2).length);
  const isDown = perRow > 1 && place[1].top > place[0].top + 1;
  const [right, down] = isDown ? [numRows(), 1] : [1, perRow];
  const step = { ArrowRight: right, ArrowLeft: -right, ArrowDown: down, ArrowUp: -down }[event.key];
  if (at < 0) tiles[0]?.focus();
  else if (at + step >= 0) tiles[Math.min(at + step, tiles.length - 1)].focus();
  else searchField.focus();
  event.preventDefault();
};
const onKey = (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const focused = document.activeElement;
  const isSearching = focused === searchField;
  const isElsewhere = !isSearching && focused?.matches("input, select, textarea");
  if (event.key === "/" && !isSearching && !isElsewhere) {
    searchField.focus();
    searchField.select();
    event.preventDefault();
  } else if (event.key === "Escape" && isSearching) {
    searchField.value = "";
    show();
    writeAddress();
  } else if (event.key === "Enter" && isSearching) {
    links()[0]?.click();
    event.preventDefault();
  } else if (/^Arrow(Up|Down)$/.test(event.key) || (/^Arrow/.test(event.key) && !isSearching)) {
    if (isSearching || present.contains(focused)) moveFocus(event);
  }
};

const remembered = () => { try { return localStorage.getItem(VIEW_KEY); } catch { return null; } };
if (!new URLSearchParams(location.search).has("view") && remembered() === "table") field("view").value = "table";
form.querySelector("button:not([type])").hidden = true;
toggle.hidden = false;
toggle.addEventListener("click", () => {
  field("view").value = field("view").value === "table" ? "" : "table";
  try { localStorage.setItem(VIEW_KEY, field("view").value); } catch { /* a browser may keep nothing */ }
  show();
  writeAddress();
});
form.addEventListener("submit", (event) => event.preventDefault());
for (const kind of ["input", "change"]) form.addEventListener(kind, () => { show(); writeAddress(); });
addEventListener("keydown", onKey);
// A finger cannot hover: a tap on a word that has a sentence shows it, and opens no page.
present.addEventListener("click", (event) => {
  const word = event.target.closest(".tiles span[title]");
  if (event.pointerType !== "touch" || !word) return;
  event.preventDefault();
  word.classList.toggle("open");
});
onPart(show);
