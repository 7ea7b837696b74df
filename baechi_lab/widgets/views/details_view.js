// The details pane: facts of the selected op, and its neighbours as links. Traits: see details_view.py.

/** @typedef {{op: number, name: string, text: string, marked: boolean}} DetailRow */
/** @typedef {{title: string, rows: DetailRow[], more: number}} DetailSection */

/** @param {{model: Model, el: HTMLElement}} given */
function render({ model, el }) {
  el.classList.add("bl-view", "bl-details");
  el.setAttribute("role", "region");
  el.setAttribute("aria-label", "details of the selection");

  /** @param {DetailRow} row */
  const rowOf = (row) => {
    const name = row.op < 0 ? element("span", {}, ...breakable(row.name))
      : element("button", { type: "button", class: "bl-link", title: `select ${row.name}`, onclick: () => model.send({ type: "go", op: row.op }) }, ...breakable(row.name));
    return element("li", row.marked ? { class: "bl-here", "aria-current": "true" } : {}, name, element("span", { class: "bl-value" }, row.text));
  };

  function draw() {
    const facts = /** @type {string[][]} */ (model.get("facts"));
    const sections = /** @type {DetailSection[]} */ (model.get("sections")).filter((one) => one.rows.length);
    el.replaceChildren(
      element("div", { class: "bl-details-name" }, ...breakable(model.get("heading") || "Details")),
      element("div", { class: "bl-details-hint", hidden: !model.get("hint") }, model.get("hint")),
      element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])),
      ...sections.map((one) => element("section", { "aria-label": one.title },
        element("div", { class: "bl-details-title" }, one.title),
        element("ul", {}, ...one.rows.map(rowOf)),
        one.more > 0 ? `and ${one.more.toLocaleString("en")} more` : "")));
    rove(el);
  }
  let pending = 0;
  const soon = () => { pending ||= requestAnimationFrame(() => { pending = 0; draw(); }); };
  draw();
  const stop = listen(model, { heading: soon, hint: soon, facts: soon, sections: soon });
  return () => { stop(); cancelAnimationFrame(pending); };
}

export default { render };
