(() => {
  const root = document.documentElement;
  const locales = { [root.lang]: { dictionary: JSON.parse(root.dataset.words) } };
  const isTouch = matchMedia("(pointer: coarse)").matches;
  const painted = (value, style) => {
    if (typeof value === "string" && value[0] === "$")
      return style.getPropertyValue("--" + value.slice(1)).trim() || value;
    if (Array.isArray(value)) return value.map((each) => painted(each, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, painted(each, style)]));
  };
  const draw = (box) => {
    const text = box.parentElement.querySelector("script").textContent;
    const figure = painted(JSON.parse(text), getComputedStyle(root));
    if (isTouch) Object.assign(figure.layout, { dragmode: false, hovermode: "closest" });
    const isNew = !box.classList.contains("drawn");
    box.classList.add("drawn");
    Plotly.react(box, figure.data, figure.layout, {
      locale: root.lang, locales, responsive: true, displaylogo: false, displayModeBar: isTouch ? false : "hover",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    }).then(() => { if (isNew) root.dataset.charts = Number(root.dataset.charts) + 1; });
  };
  const isFolded = (box) => { const fold = box.closest("details"); return fold !== null && !fold.open; };
  const drawCandles = (figure) => {
    figure.classList.add("drawn");
    globalThis.v8Candles(figure);
    root.dataset.charts = Number(root.dataset.charts) + 1;
  };
  const drawOpen = () => {
    document.querySelectorAll(".plot:not(.drawn)").forEach((box) => { if (!isFolded(box)) draw(box); });
    document.querySelectorAll(".candles:not(.drawn)").forEach((figure) => { if (!isFolded(figure)) drawCandles(figure); });
  };
  const load = (fold) => {
    if (!fold.open || !fold.dataset.file) return;
    const script = document.createElement("script");
    script.src = fold.dataset.file;
    script.onerror = () => {
      const waiting = fold.querySelector(".far");
      waiting.textContent = waiting.dataset.lost;
    };
    delete fold.dataset.file;
    document.head.append(script);
  };
  globalThis.v8Section = (name, markup) => {
    const fold = document.getElementById(name);
    fold.querySelector(".far").outerHTML = markup;
    fold.querySelectorAll(".scroll").forEach((box) => cut.observe(box));
    drawOpen();
  };
  const unfold = () => {
    const name = decodeURIComponent(location.hash.slice(1));
    document.querySelectorAll("details").forEach((fold) => {
      if (name === "all" || (name && fold.id === name)) fold.open = true;
    });
    drawOpen();
    const target = document.getElementById(name);
    if (target) target.scrollIntoView();
  };
  // A frame later: the mark itself changes the height of the box, and so would call this again at once.
  const cut = new ResizeObserver((seen) => requestAnimationFrame(() => seen.forEach(({ target }) =>
    target.classList.toggle("cut", target.scrollWidth > target.clientWidth))));
  const begin = () => {
    const sections = document.querySelectorAll("details[id]");
    if (sections.length === 1) {
      sections[0].open = true;
      // Its chart is on the first screen already.
      if (document.querySelector(".screen .candles")) sections[0].querySelector(".candles")?.remove();
    }
    document.querySelectorAll(".scroll").forEach((box) => cut.observe(box));
    unfold();
  };
  const remembered = "v8-language";
  const memory = (name) => {  // a browser may keep nothing of a page from the disk
    try {
      if (name) localStorage.setItem(remembered, name);
      return localStorage.getItem(remembered);
    } catch { return null; }
  };
  const first = root.lang;
  const files = JSON.parse(root.dataset.languages || "{}");
  const preferred = () => {
    const available = [first, ...Object.keys(files)];
    const kept = memory();
    if (available.includes(kept)) return kept;
    for (const name of navigator.languages)
      for (const one of available) if (one.slice(0, 2) === name.slice(0, 2).toLowerCase()) return one;
    return first;
  };
  const show = (name) => {
    if (name === first || !files[name]) return begin();
    const script = document.createElement("script");
    script.src = files[name];
    document.body.hidden = true;
    const go = () => { document.body.hidden = false; begin(); };
    script.onload = go;
    script.onerror = go;  // sent without its folder, the page stays in the language that it was written in
    document.head.append(script);
  };
  globalThis.v8Language = ({ language, title, words, markup }) => {
    root.lang = language;
    locales[language] = { dictionary: words };
    document.title = title;
    document.querySelector("main").innerHTML = markup;
  };
  document.addEventListener("click", ({ target }) => {
    const name = target.dataset.language;
    if (!name || name === root.lang) return;
    memory(name);
    if (memory() === name) location.reload();
    else if (name !== first) show(name);
  });
  document.addEventListener("toggle", ({ target }) => { load(target); drawOpen(); }, true);
  addEventListener("hashchange", unfold);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    document.querySelectorAll(".plot.drawn").forEach(draw));
  show(preferred());
})();
