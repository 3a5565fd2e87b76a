"use strict";
// Draws the reference of the API from the OpenAPI description, so that the two cannot differ.
(async () => {
  const root = document.documentElement;
  root.dataset.errors = 0;
  const count = () => { root.dataset.errors = Number(root.dataset.errors) + 1; };
  for (const kind of ["error", "unhandledrejection", "securitypolicyviolation"]) addEventListener(kind, count);

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
  const fields = ({ properties, required, additionalProperties }) => table(["field", "form", "meaning"], [
    ...Object.entries(properties).map(([name, field]) => [code(name), kind(field), meaning(field, required.includes(name))]),
    ...(additionalProperties ? [["any other", kind(additionalProperties), "see above"]] : []),
  ]);
  const parameters = (all) => all.flatMap(({ name, in: position, description }) =>
    position === "query" ? [element("br"), code("?" + name + "="), " " + description] : []);

  const draw = ({ info, paths, components }) => {
    const routes = Object.entries(paths).map(([path, { get }]) => [path, get, Object.entries(get.responses["200"].content)[0]]);
    const faults = Object.entries(Object.values(paths)[0].get.responses).filter(([status]) => status !== "200");
    const metrics = Object.entries(paths["/metrics"].get["x-metrics"]);
    return [
      element("p", info.description),
      element("p", ["For programs: ", element("a", "/openapi.json", { href: "/openapi.json" }), " (OpenAPI 3.1), from which clients can be generated."]),
      element("h2", "Addresses"),
      table(["address", "what it answers", "form"], routes.map(([path, get, [media, { schema }]]) => [
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

  const answer = await fetch("/openapi.json");
  document.getElementById("reference").replaceChildren(...draw(await answer.json()));
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  root.dataset.shown = 1;
})();
