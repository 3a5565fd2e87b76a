"use strict";
// Draws the reference of the API from the OpenAPI description, so that the two cannot differ.
(async () => {
  const root = document.documentElement;
  root.dataset.errors = 0;
  const count = () => { root.dataset.errors = Number(root.dataset.errors) + 1; };
  for (const kind of ["error", "unhandledrejection", "securitypolicyviolation"]) addEventListener(kind, count);

  // Links to other pages keep the language that the address requests, as page.js does.
  const language = new URLSearchParams(location.search).get("lang");
  if (language) document.querySelectorAll("header a[href^='/']").forEach((link) => { link.search = "?lang=" + encodeURIComponent(language); });

  const element = (tag, children = [], attributes = {}) => {
    const node = document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
    node.append(...[children].flat());
    return node;
  };
  const table = (titles, rows) => element("div", element("table", [
    element("thead", element("tr", titles.map((title) => element("th", title, { scope: "col" })))),
    element("tbody", rows.map(([first, ...others]) => element("tr", [
      element("th", first, { scope: "row" }), ...others.map((cell) => element("td", cell))]))),
  ], { class: "reference" }), { class: "scroll" });
  const code = (text) => element("code", text);

  // The form of a value: a link if it has a description of its own.
  const kind = (schema) => {
    if (schema.$ref) {
      const name = schema.$ref.split("/").pop();
      return [element("a", name, { href: "#" + name })];
    }
    if (schema.oneOf) return schema.oneOf.flatMap((one, at) => [...(at ? [" or "] : []), ...kind(one)]);
    if (schema.items) return ["list of ", ...kind(schema.items), ...([schema.type].flat().includes("null") ? [" or null"] : [])];
    if (schema.additionalProperties && !schema.properties) return [...kind(schema.additionalProperties), " by name"];
    return [[schema.type].flat().join(" or ") + (schema.format ? ", " + schema.format : "")];
  };
  const meaning = (schema, isAlways) => [schema.description, ...(isAlways ? [] : ["; not always there"])];
  const fields = ({ properties, required, additionalProperties }) => table(["field", "type", "meaning"], [
    ...Object.entries(properties).map(([name, field]) => [code(name), kind(field), meaning(field, required.includes(name))]),
    ...(additionalProperties ? [["any other", kind(additionalProperties), "see above"]] : []),
  ]);
  const parameters = (all) => all.flatMap(({ name, in: position, description }) =>
    position === "query" ? [element("br"), code("?" + name + "="), " " + description] : []);

  // A form that sends a request to one of the addresses and shows the answer; the same request for a terminal above it.
  const MAX_LETTERS = 20000;
  const tryForm = (paths, series) => {
    const entries = Object.entries(paths).filter(([, { get }]) => !("text/event-stream" in get.responses["200"].content));
    const select = element("select", entries.map(([path]) => element("option", path, { value: path })), { id: "try-address" });
    select.value = "/api/forecast/{series}";
    const inputs = element("span");
    const command = element("pre", "", { id: "try-command" });
    const output = element("pre", "", { id: "try-answer", tabindex: "0" });
    const status = element("p", "", { id: "try-status", role: "status" });
    const address = () => {
      let path = select.value;
      const query = new URLSearchParams();
      for (const input of inputs.querySelectorAll("input")) {
        if (input.dataset.in === "path") path = path.replace("{" + input.name + "}", encodeURIComponent(input.value.trim()));
        else if (input.value.trim()) query.set(input.name, input.value.trim());
      }
      return path + (query.size ? "?" + query : "");
    };
    // Within single quotes a shell reads everything but a single quote as it is.
    const showCommand = () => { command.textContent = "curl '" + (location.origin + address()).replaceAll("'", "%27") + "'"; };
    const showInputs = () => {
      const own = (paths[select.value].get.parameters || []).filter((parameter) => parameter.in !== "header");
      inputs.replaceChildren(...own.map((parameter) => element("label", [parameter.name + " ", element("input", [], {
        name: parameter.name, value: (parameter.name === "series" && series) || (parameter.example ?? ""), "data-in": parameter.in, title: parameter.description })])));
      showCommand();
    };
    const send = async () => {
      status.textContent = "Waiting for the answer.";
      output.textContent = "";
      const answer = await fetch(address());
      const text = await answer.text();
      const isJson = (answer.headers.get("content-type") || "").startsWith("application/json");
      const shown = isJson ? JSON.stringify(JSON.parse(text), null, 2) : text;
      status.textContent = "Status " + answer.status + ", " + text.length.toLocaleString("en") + " letters"
        + (shown.length > MAX_LETTERS ? "; the beginning:" : ":");
      output.textContent = shown.slice(0, MAX_LETTERS);
    };
    const form = element("form", [element("label", "Address", { for: "try-address" }), select, inputs, element("button", "Send", { type: "submit" })]);
    select.addEventListener("change", showInputs);
    inputs.addEventListener("input", showCommand);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      send().catch(() => { status.textContent = "The server does not answer."; });
    });
    showInputs();
    return [form, command, status, output];
  };

  const draw = ({ info, paths, components }, series) => {
    const routes = Object.entries(paths).map(([path, { get }]) => [path, get, Object.entries(get.responses["200"].content)[0]]);
    const faults = Object.entries(Object.values(paths)[0].get.responses).filter(([status]) => status !== "200");
    const metrics = Object.entries(paths["/metrics"].get["x-metrics"]);
    return [
      element("p", info.description),
      element("p", ["For programs: ", element("a", "/openapi.json", { href: "/openapi.json" }), " (OpenAPI 3.1), from which clients can be generated."]),
      element("h2", "Try it", { id: "try" }),
      element("p", ["Send a request to this server and read the answer; the line with curl does the same in a terminal. If the server has a token, add ",
        element("code", [element("span", "--header", { class: "whole" }), " \"Authorization: Bearer $V8_APP_TOKEN\""]), "."]),
      ...tryForm(paths, series),
      element("h2", "Addresses"),
      table(["address", "what it answers", "type"], routes.map(([path, get, [media, { schema }]]) => [
        path.includes("{") ? code(path) : element("a", code(path), { href: path }),
        [get.summary, ...parameters(get.parameters || [])],
        media === "application/json" ? kind(schema) : [media],
      ])),
      element("h2", "Errors"),
      element("p", ["Whatever goes wrong is a ", element("a", "Fault", { href: "#Fault" }), ", with one of these statuses."]),
      table(["status", "meaning"], faults.map(([status, { description }]) => [status, description])),
      element("h2", "Metrics"),
      table(["metric", "meaning"], metrics.map(([name, text]) => [code(name), text])),
      ...Object.entries(components.schemas).flatMap(([name, schema]) => [
        element("h2", name, { id: name }), element("p", schema.description), fields(schema)]),
    ];
  };

  const json = async (address) => (await fetch(address)).json();
  // The example names a series of this server; where the answer is an error, that of the description.
  const [description, { series: all }] = await Promise.all([json("/openapi.json"), json("/api/series")]);
  document.getElementById("reference").replaceChildren(...draw(description, all?.[0]?.series));
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  root.dataset.shown = 1;
})();
