// A table that sorts by its columns; a click and the keys of a button do the same. Traits: see table_view.py.

/** @typedef {{name: string, hint: string, number: boolean}} ColumnHead */
const SHORT = 14; // letters of a name that stand on one line

/** The name of a column and its unit: lines break before the unit, and within the name only where that is long. @param {string} name
 * @returns {[string, string]} a part without a break, and the rest */
function headParts(name) {
  const unit = name.search(/ \(/);
  const end = unit < 0 ? name.length : unit;
  return end > SHORT ? ["", name] : [name.slice(0, end), name.slice(end)];
}

/** @param {string} name */
function headOf(name) {
  const [whole, rest] = headParts(name);
  return [element("span", { class: "bl-whole" }, whole), rest];
}

/** @typedef {{id: string, cells: string[], tips: string[], keys: (number | string | null)[], marked: boolean, notes: {text: string, hint: string, good: boolean}[],
 *   actions: {name: string, hint: string}[], lanes: {d: string, color: string}[], span: number, label: string}} TableRow */
const LANE_BINS = 60;

/** The order of rows by a column, ties in the order in which they came; what has no value stands last either way.
 * @param {{keys: (number | string | null)[]}[]} rows @param {number} column -1: as they came @param {boolean} descending @returns {number[]} */
function sortedOrder(rows, column, descending) {
  const order = rows.map((_, k) => k);
  if (column < 0) return order;
  const compare = (/** @type {any} */ a, /** @type {any} */ b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en"));
  return order.sort((a, b) => {
    const [x, y] = [rows[a].keys[column], rows[b].keys[column]];
    if (x === null || y === null) return Number(x === null) - Number(y === null) || a - b;
    return (descending ? -1 : 1) * compare(x, y) || a - b;
  });
}

/** Busy shares of the devices over the step, on the scale of all rows. @param {TableRow} row */
function lanesPicture(row) {
  const count = row.lanes.length;
  const picture = svg("svg", {
    class: "bl-lanes", role: "img", "aria-label": row.label, viewBox: `0 0 ${LANE_BINS} ${count}`, preserveAspectRatio: "none",
    style: `width:${Math.max(row.span * 100, 1)}%;height:${Math.min(Math.max(6 * count, 14), 22)}px`,
  });
  picture.append(svg("title", {}, row.label), ...row.lanes.map(({ d, color }) => svg("path", { d, style: `fill:${color}` })));
  return picture;
}

/** @param {{model: Model, el: HTMLElement}} given */
function render({ model, el }) {
  el.classList.add("bl-view", "bl-sorted-table");
  let [column, descending] = [-1, false];

  /** @param {number} k */
  const sortBy = (k) => {
    if (column !== k) [column, descending] = [k, false];
    else if (!descending) descending = true;
    else column = -1;
    draw();
  };

  function draw() {
    const head = /** @type {ColumnHead[]} */ (model.get("head"));
    const rows = /** @type {TableRow[]} */ (model.get("rows"));
    el.hidden = rows.length === 0;
    if (column >= head.length) column = -1;
    const [lanes, actions] = [rows.some((row) => row.lanes.length), rows.some((row) => row.actions.length)];
    const focused = /** @type {HTMLElement | null} */ (el.contains(document.activeElement) ? document.activeElement : null)?.dataset.key;
    const heads = head.map((one, k) => element("th", {
      scope: "col", class: one.number && "bl-number", "aria-sort": column === k && (descending ? "descending" : "ascending"),
    }, element("button", { type: "button", class: "bl-sort", title: one.hint || `sort by ${one.name}`, "data-key": `head ${k}`, onclick: () => sortBy(k) }, ...headOf(one.name))));
    const body = sortedOrder(rows, column, descending).map((number) => {
      const row = rows[number];
      const cells = row.cells.map((text, k) => element("td", { class: head[k].number && "bl-number", title: row.tips[k] || false }, text,
        ...(k ? [] : row.notes.flatMap((one, at) => [at ? " · " : " ", element("span", { class: one.good ? "bl-good" : "bl-note", title: one.hint }, one.text)]))));
      const buttons = row.actions.map(({ name, hint }) => element("button", {
        type: "button", class: "bl-button", title: hint, "data-key": `${name} ${row.cells[0]}`,
        onclick: () => model.send({ type: "action", id: row.id, action: name }),
      }, name));
      return element("tr", { class: row.marked && "bl-marked" }, ...cells,
        ...(lanes ? [element("td", { class: "bl-lanes-place" }, ...(row.lanes.length ? [lanesPicture(row)] : []))] : []),
        ...(actions ? [element("td", { class: "bl-actions" }, ...buttons)] : []));
    });
    const more = [lanes && "devices busy", actions && " "].filter((name) => name !== false);
    el.replaceChildren(element("div", { class: "bl-scroll" }, element("table", { class: "bl-table", "aria-label": model.get("caption") },
      element("thead", {}, element("tr", {}, ...heads, ...more.map((name) => (name === " " ? element("td", {}) : element("th", { scope: "col" }, name))))),
      element("tbody", {}, ...body))));
    rove(el);
    if (focused !== undefined) /** @type {HTMLElement | undefined} */ ([...el.querySelectorAll("button")].find((one) => one.dataset.key === focused))?.focus();
  }
  let pending = 0;
  const soon = () => { pending ||= requestAnimationFrame(() => { pending = 0; draw(); }); };
  draw();
  const stop = listen(model, { head: soon, rows: soon, caption: soon });
  return () => { stop(); cancelAnimationFrame(pending); };
}

export default { render };
