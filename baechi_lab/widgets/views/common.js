// Shared by the three canvas views. Python joins this text in front of each view's own file, so that the browser gets
// one plain ES module per view, without a bundler; hence no imports and no exports here.

const ARRAYS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u2: Uint16Array, u1: Uint8Array };
const UNSEEN = -1;

/** The traits of a view, as anywidget gives them: `get` and `set` by name, `on("change:name", ...)`.
 * @typedef {{get: (name: string) => any, set: (name: string, value: any) => void, save_changes: () => void,
 *   send: (content: any) => void, on: (event: string, handler: (...given: any[]) => void) => void,
 *   off: (event: string, handler: (...given: any[]) => void) => void}} Model */
/** The theme's colours and font, as the canvas needs them.
 * @typedef {{background: string, text: string, faint: string, grid: string, edge: string, crossing: string, accent: string,
 *   danger: string, heat: string, font: string}} Theme */
/** A table for readers of screens; `count` is the number of all rows, where `rows` are the first ones.
 * @typedef {{caption: string, head: string[], rows: string[][], count?: number}} TableContents */
/** What `frame` makes: elements, size in pixels, and what to call. `rectangle` is the rubber band of a Shift-drag, `tail` the
 * end of the toolbar, which has one line with the buttons "Table" and "?".
 * @typedef {{host: HTMLElement, toolbar: HTMLElement, stage: HTMLElement, canvas: HTMLCanvasElement, tail: HTMLElement, tabulate: () => void,
 *   describe: (words: string, keys: Record<string, string>, table: () => TableContents) => void,
 *   context: CanvasRenderingContext2D, tooltip: HTMLElement, live: HTMLElement, width: number, height: number,
 *   pending: number, colours: Theme | null, rectangle: number[] | null, paint: () => void, redraw: () => void,
 *   resize: () => void, say: (text: string) => void, wantsWheel: (event: WheelEvent) => boolean,
 *   close: () => void}} View */

/** One column as a typed array (copied, because a message's buffer need not be aligned).
 * @template {keyof typeof ARRAYS} Type
 * @param {Record<string, DataView>} columns @param {string} name @param {Type} type
 * @returns {InstanceType<(typeof ARRAYS)[Type]>} */
function column(columns, name, type) {
  const view = columns[name];
  const sent = view ? /** @type {ArrayBuffer} */ (view.buffer) : new ArrayBuffer(0);
  const own = view ? sent.slice(view.byteOffset, view.byteOffset + view.byteLength) : sent;
  return /** @type {InstanceType<(typeof ARRAYS)[Type]>} */ (new ARRAYS[type](own));
}

/** A pattern of thin lines in a square of 6 pixels, null for none. @param {CanvasRenderingContext2D} context
 * @param {number[][]} lines as x0, y0, x1, y1 @param {string} colour */
function hatchOf(context, lines, colour) {
  if (!lines.length) return null;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const brush = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
  brush.globalAlpha = 0.45;
  for (const line of lines) drawLine(brush, line, colour);
  return context.createPattern(tile, "repeat");
}

/** A straight line. @param {CanvasRenderingContext2D} context @param {number[]} line as x0, y0, x1, y1 @param {string} colour
 * @param {number} width @param {number[]} dash */
function drawLine(context, [x0, y0, x1, y1], colour, width = 1, dash = []) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
  context.setLineDash([]);
}

/** Text that can be read on any colour.
 * @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {number} y @param {string} colour @param {Theme} theme */
function drawHaloed(context, text, x, y, colour, theme) {
  context.strokeStyle = theme.background;
  context.lineWidth = 3;
  context.strokeText(text, x, y);
  context.fillStyle = colour;
  context.fillText(text, x, y);
}

/** The first place from `low` on that does not lie before what is looked for; `high` if all places below it do.
 * @param {number} low @param {number} high @param {(place: number) => boolean} isBefore of ascending places, true and then false */
function firstPlace(low, high, isBefore) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isBefore(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Lines of a UTF-8 column. @param {DataView | undefined} view @returns {string[]} */
function texts(view) {
  return view && view.byteLength ? new TextDecoder().decode(view).split("\n") : [];
}

/** @param {number} value microseconds */
function formatTime(value) {
  if (!Number.isFinite(value)) return "?";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(2)} s`;
  if (size >= 1e3) return `${(value / 1e3).toFixed(2)} ms`;
  if (size >= 0.1) return `${value.toFixed(2)} us`;
  return size >= 1e-5 ? `${(value * 1e3).toFixed(2)} ns` : "0 us";
}

/** A time in the unit that suits the largest of those that it stands beside; what is shorter than a thousandth of it has its own.
 * @param {number} value @param {number} largest both in microseconds */
function formatTimeBeside(value, largest) {
  const [factor, unit] = largest >= 1e6 ? [1e6, "s"] : largest >= 1e3 ? [1e3, "ms"] : largest >= 0.1 ? [1, "us"] : [1e-3, "ns"];
  const scaled = value / factor;
  if (!(Math.abs(scaled) >= 1e-3)) return formatTime(value);
  return `${Math.abs(scaled) >= 0.1 ? scaled.toFixed(2) : Number(scaled.toPrecision(3))} ${unit}`;
}

/** @param {number} value bytes */
function formatBytes(value) {
  return formatBytesBeside(value, value);
}

/** Bytes in the unit that suits the largest of those that they stand beside; what is less than a ten-thousandth of it has its own.
 * @param {number} value @param {number} largest @returns {string} */
function formatBytesBeside(value, largest) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let [unit, factor] = [0, 1];
  while (Math.abs(largest) / factor >= 1000 && unit < units.length - 1) {
    factor *= 1000;
    unit += 1;
  }
  const size = value / factor;
  if (unit === 0 || value === 0) return `${value === 0 ? 0 : size.toFixed(0)} ${units[unit]}`;
  if (Math.abs(size) < 1e-4) return formatBytes(value);
  return `${Math.abs(size) >= 0.01 ? size.toFixed(2) : Number(size.toPrecision(1))} ${units[unit]}`;
}

/** A size as the marks of a scale show it: "0.5 GB" for "0.50 GB". @param {string} text */
function withoutEndingZeros(text) {
  return text.replace(/\.?0+(?= )(?<=\..*)/, "");
}

/** A device's memory: sizes in whole GiB or MiB, as many are given, in these as well. @param {number} value bytes */
function formatLimit(value) {
  const unit = [["GiB", 2 ** 30], ["MiB", 2 ** 20]].find(([, size]) => value > 0 && value % Number(size) === 0);
  return formatBytes(value) + (unit ? ` = ${value / Number(unit[1])} ${unit[0]}` : "");
}

/** A number of ops: `opsInWords(1)` is "1 op", `opsInWords(2000)` is "2,000 ops". @param {number} count */
function opsInWords(count) {
  return count === 1 ? "1 op" : `${count.toLocaleString("en")} ops`;
}

/** A share from 0 to 1 in per cent; only 0 is 0% and only 1 is 100%. @param {number} share */
function formatShare(share) {
  const whole = (share * 100).toFixed(0);
  const exact = Math.min(share, 1 - share) < 1e-9;
  return exact || (whole !== "0" && whole !== "100") ? `${whole}%` : `${Math.min(Math.max(share * 100, 0.1), 99.9).toFixed(1)}%`;
}

/** An element with attributes and children.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag @param {Record<string, any>} attributes @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[Tag]} */
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** An SVG element. @param {string} tag @param {Record<string, string | number>} attributes @param {string} [text] */
function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  if (text !== undefined) node.textContent = text;
  return node;
}

/** One line of a legend: a stroke in the colour of its class, and what it means. @param {string} kind @param {string} text @param {string} title */
function lineKey(kind, text, title = "") {
  return element("span", { class: "bl-key", title }, element("span", { class: `bl-line ${kind}` }), text);
}

/** A button with a text and an explanation. @param {string} text @param {string} title @param {() => void} onclick */
function button(text, title, onclick) {
  return element("button", { type: "button", title, class: "bl-button", onclick }, text);
}

let lastNumber = 0;
/** A number for the `id` of an element. Each widget has a module of its own, so a count alone would repeat. */
function nextNumber() {
  lastNumber += 1;
  return `${lastNumber}-${Math.random().toString(36).slice(2, 8)}`;
}

/** A panel that lists the keys of a view, hidden at first. @param {string} label */
function keyList(label) {
  const host = element("div", { class: "bl-keys", role: "dialog", "aria-label": `keys of ${label}`, tabindex: "-1", hidden: true });
  /** @type {HTMLElement | null} */
  let before = null;
  const hide = () => {
    host.hidden = true;
    before?.focus();
  };
  host.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" && event.key !== "?") return;
    hide();
    event.preventDefault();
    event.stopPropagation();
  });
  return {
    host,
    /** @param {Record<string, string>} keys */
    fill: (keys) => host.replaceChildren(
      element("b", {}, `Keys of ${label}`),
      element("dl", {}, ...Object.entries(keys).flatMap(([key, what]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, what)])),
      button("Close", "hide the keys (Escape)", hide)),
    /** @param {HTMLElement} from */
    toggle: (from) => {
      if (!host.hidden) return hide();
      before = from;
      host.hidden = false;
      return host.focus();
    },
  };
}

const MOST_ROWS = 500; // of a table

/** A table of texts, at most `MOST_ROWS`. `count` is the number of all rows, if not all are given.
 * @param {TableContents} contents */
function textTable({ caption, head, rows, count = rows.length }) {
  const cells = (/** @type {"th" | "td"} */ kind, /** @type {string[]} */ texts) => element("tr", {}, ...texts.map((text) => element(kind, kind === "th" ? { scope: "col" } : {}, text)));
  const more = count > MOST_ROWS ? `, the first ${MOST_ROWS} of ${count.toLocaleString("en")}` : "";
  return element("table", {}, element("caption", {}, `${caption}${more}`), element("thead", {}, cells("th", head)),
    element("tbody", {}, ...rows.slice(0, MOST_ROWS).map((texts) => cells("td", texts))));
}

const STOPS = "button, svg [role=button], input[type=checkbox]";

/** One Tab stop for all buttons or checkboxes of a bar, or marks of a chart; arrows, Home and End go from one to the next. What is added later
 * joins when this is called again. @param {HTMLElement} bar */
function rove(bar) {
  const all = () => /** @type {HTMLElement[]} */ ([...bar.querySelectorAll(STOPS)]);
  const stops = () => all().filter((one) => !one.matches(":disabled"));
  const here = stops().find((one) => one === document.activeElement || one.tabIndex === 0) ?? stops()[0];
  for (const one of all()) one.tabIndex = one === here ? 0 : -1;
  if (bar.dataset.roving) return;
  bar.dataset.roving = "true";
  bar.addEventListener("keydown", (event) => {
    const now = stops();
    const at = now.indexOf(/** @type {HTMLElement} */ (event.target));
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: now.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    const next = now[(to + now.length) % now.length];
    for (const one of now) one.tabIndex = one === next ? 0 : -1;
    next.focus();
    event.preventDefault();
    event.stopPropagation();
  });
}

/** The theme's colours as the canvas needs them. @param {Element} host @returns {Theme} */
function themeOf(host) {
  const style = getComputedStyle(host);
  const read = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  return {
    background: read("--bl-background"), text: read("--bl-text"), faint: read("--bl-faint"), grid: read("--bl-grid"),
    edge: read("--bl-edge"), crossing: read("--bl-crossing"), accent: read("--bl-accent"), danger: read("--bl-danger"), heat: read("--bl-series-0"),
    font: style.fontFamily || "sans-serif",
  };
}

/** Call `dress` whenever the page changes its theme; gives what ends that. @param {() => void} dress */
function onTheme(dress) {
  const themes = new MutationObserver(dress);
  themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
  return () => themes.disconnect();
}

/** Keep letters, digits and arrows from the notebook: there x cuts the cell that shows `host`, m makes it Markdown, and an arrow
 * takes the focus to another cell. @param {HTMLElement} host */
function keepKeys(host) {
  host.addEventListener("keydown", (event) => {
    const isCommand = event.ctrlKey || event.metaKey || event.altKey;
    if (!isCommand && (event.key.length === 1 || event.key.startsWith("Arrow"))) event.stopPropagation();
  });
}

/** A view's frame: toolbar, canvas, tooltip, hint and a live region; it redraws once per animation frame at most.
 * @param {HTMLElement} host @param {string} label @param {(context: CanvasRenderingContext2D, width: number, height: number, theme: Theme) => void} draw
 * @returns {View} */
function frame(host, label, draw) {
  host.classList.add("bl-view");
  keepKeys(host);
  const toolbar = element("div", { class: "bl-toolbar", role: "toolbar", "aria-label": `${label} tools` });
  const about = element("div", { class: "bl-hidden", id: `bl-about-${nextNumber()}` });
  const canvas = element("canvas", { tabindex: "0", role: "application", "aria-label": label, "aria-describedby": about.id });
  const tooltip = element("div", { class: "bl-tooltip", hidden: true });
  const tail = element("span", { class: "bl-group bl-tail" });
  const hint = element("div", { class: "bl-hint" }, "click here first, or hold Ctrl, to zoom with the wheel");
  const live = element("div", { class: "bl-live", "aria-live": "polite" });
  const stage = element("div", { class: "bl-stage" }, canvas, tooltip, hint);
  host.replaceChildren(toolbar, about, stage, live);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  // The functions follow.
  const view = /** @type {View} */ (/** @type {unknown} */ ({
    host, toolbar, stage, canvas, context, tooltip, live, tail, width: 0, height: 0, pending: 0, colours: null, rectangle: null,
  }));
  view.paint = () => {
    view.pending = 0;
    if (view.width < 2 || view.height < 2) return;
    if (!view.colours) view.colours = themeOf(host);
    const scale = globalThis.devicePixelRatio || 1;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    draw(context, view.width, view.height, view.colours);
    canvas.dataset.frames = String(Number(canvas.dataset.frames || 0) + 1);
  };
  view.redraw = () => {
    if (!view.pending) view.pending = requestAnimationFrame(view.paint);
  };
  view.resize = () => {
    const scale = globalThis.devicePixelRatio || 1;
    view.width = stage.clientWidth;
    view.height = stage.clientHeight;
    canvas.width = Math.round(view.width * scale);
    canvas.height = Math.round(view.height * scale);
    // A new size empties the canvas, and the page is shown before the next animation frame: whoever drags a window's edge saw nothing.
    cancelAnimationFrame(view.pending);
    view.paint();
  };
  view.say = (text) => {
    live.textContent = text;
  };
  const list = keyList(label);
  const rows = element("div", { class: "bl-rows-table", hidden: true });
  const help = button("?", "the keys of this view (?)", () => list.toggle(canvas));
  const tabular = button("Table", "the same as a table of text", () => {
    rows.hidden = !rows.hidden;
    tabular.setAttribute("aria-pressed", String(!rows.hidden));
    view.tabulate();
  });
  tabular.setAttribute("aria-pressed", "false");
  const beside = element("span", { class: "bl-group bl-beside" });
  beside.append(tabular, help);
  stage.append(list.host);
  host.append(rows);
  /** @type {() => TableContents} */
  let contents = () => ({ caption: label, head: [], rows: [] });
  view.tabulate = () => {
    if (!rows.hidden) rows.replaceChildren(textTable(contents()));
  };
  view.describe = (words, keys, table) => {
    about.textContent = `${words} Keys: ${Object.entries(keys).map(([key, what]) => `${key}: ${what}`).join("; ")}.`;
    list.fill(keys);
    contents = table;
    tail.append(beside);
    if (tail.parentElement !== toolbar) toolbar.append(tail);
    rove(toolbar);
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.key !== "?") return;
    list.toggle(canvas);
    event.preventDefault();
    event.stopPropagation();
  });
  const sizes = new ResizeObserver(view.resize);
  sizes.observe(stage);
  const undress = onTheme(() => {
    view.colours = null;
    view.redraw();
  });
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let hide;
  view.wantsWheel = (event) => {
    if (event.ctrlKey || event.metaKey || document.activeElement === canvas) return true;
    stage.classList.add("bl-hinting");
    clearTimeout(hide);
    hide = setTimeout(() => stage.classList.remove("bl-hinting"), 1200);
    return false;
  };
  view.close = () => {
    sizes.disconnect();
    undress();
    cancelAnimationFrame(view.pending);
    clearTimeout(hide);
  };
  return view;
}

/** Show rows of `[name, value]` under a title at a point of the stage; nothing hides it.
 * @param {View} view @param {number} x @param {number} y @param {string} title @param {string[][]} rows */
function showTooltip(view, x, y, title, rows) {
  const { tooltip } = view;
  if (!title) {
    tooltip.hidden = true;
    return;
  }
  const table = element("table", {}, ...rows.filter((r) => r[1]).map(([name, value]) =>
    element("tr", {}, element("td", {}, name), element("td", {}, value))));
  tooltip.replaceChildren(element("b", {}, title), table);
  tooltip.hidden = false;
  const left = Math.min(x + 14, view.width - tooltip.offsetWidth - 4);
  const below = y + 16 + tooltip.offsetHeight <= view.height;
  tooltip.style.left = `${Math.max(left, 2)}px`;
  tooltip.style.top = `${Math.max(below ? y + 16 : y - tooltip.offsetHeight - 8, 2)}px`;
}

/** Position of an event on the canvas. @param {View} view @param {MouseEvent} event */
function pointer(view, event) {
  const box = view.canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

/** Report drags (`move(dx, dy, event)`), clicks and rectangles (drag with Shift).
 * @param {View} view
 * @param {{move: (dx: number, dy: number, event: PointerEvent) => void, click: (x: number, y: number, event: PointerEvent) => void,
 *   rectangle?: (x0: number, y0: number, x1: number, y1: number, event: PointerEvent) => void,
 *   hover: (x: number, y: number, event: PointerEvent) => void, grab?: (x: number, y: number) => boolean,
 *   carry?: (event: PointerEvent) => void, drop?: (event: PointerEvent | null) => void}} handlers what `grab` takes is carried and
 *   dropped, nowhere where the gesture is cancelled */
function gestures(view, { move, click, rectangle, hover, grab, carry, drop }) {
  /** @type {{x: number, y: number, lastX: number, lastY: number, box: boolean, held: boolean} | null} */
  let start = null;
  let moved = false;
  view.canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    view.canvas.focus({ preventScroll: true });
    view.canvas.setPointerCapture(event.pointerId);
    const [x, y] = pointer(view, event);
    const box = event.shiftKey && Boolean(rectangle);
    start = { x, y, lastX: x, lastY: y, box, held: !box && Boolean(grab?.(x, y)) };
    moved = false;
  });
  view.canvas.addEventListener("pointermove", (event) => {
    const [x, y] = pointer(view, event);
    if (!start) return hover(x, y, event);
    if (!moved && Math.hypot(x - start.x, y - start.y) < 4) return undefined;
    moved = true;
    showTooltip(view, 0, 0, "", []);
    if (start.box) view.rectangle = [start.x, start.y, x, y];
    else if (start.held) carry?.(event);
    else move(x - start.lastX, y - start.lastY, event);
    start.lastX = x;
    start.lastY = y;
    return view.redraw();
  });
  const finish = (/** @type {PointerEvent} */ event) => {
    if (!start) return;
    const [x, y] = pointer(view, event);
    if (moved && start.box) rectangle?.(Math.min(start.x, x), Math.min(start.y, y), Math.max(start.x, x), Math.max(start.y, y), event);
    else if (moved && start.held) drop?.(event.type === "pointerup" ? event : null);
    else if (!moved && event.type === "pointerup") click(x, y, event);
    start = null;
    view.rectangle = null;
    view.redraw();
  };
  view.canvas.addEventListener("pointerup", finish);
  view.canvas.addEventListener("pointercancel", finish);
  view.canvas.addEventListener("pointerleave", () => showTooltip(view, 0, 0, "", []));
}

/** The rubber band of a Shift-drag. @param {View} view @param {CanvasRenderingContext2D} context @param {Theme} theme */
function drawRectangle(view, context, theme) {
  if (!view.rectangle) return;
  const [x0, y0, x1, y1] = view.rectangle;
  context.strokeStyle = theme.accent;
  context.setLineDash([4, 3]);
  context.lineWidth = 1;
  context.strokeRect(Math.min(x0, x1) + 0.5, Math.min(y0, y1) + 0.5, Math.abs(x1 - x0), Math.abs(y1 - y0));
  context.setLineDash([]);
}

/** What is drawn faintly, one byte per node (graph) or op (timeline); empty for nothing. @param {Model} model */
function readDim(model) {
  const view = model.get("dim");
  return view && view.byteLength ? new Uint8Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength)) : new Uint8Array(0);
}

/** anywidget gives a widget two seconds to start. Where that was too short, as on a busy machine, it drops all that the kernel sends.
 * This function then listens to the kernel directly, and asks it for what was dropped. @param {Model} model */
async function followKernel(model) {
  const whole = await /** @type {any} */ (model).widget_manager?.get_model?.(model.get("comm_id"));
  if (!whole?.comm) return; // a notebook without a kernel
  try {
    await whole._handle_comm_msg({ content: { data: { method: "none" } } });
  } catch {
    const handle = Object.getPrototypeOf(Object.getPrototypeOf(whole))._handle_comm_msg;
    whole.comm.on_msg(handle.bind(whole));
    whole.comm.send({ method: "request_state" }, whole.callbacks());
  }
}

/** Listen to several traits; returns a function that stops.
 * @param {Model} model @param {Record<string, (...given: any[]) => void>} handlers */
function listen(model, handlers) {
  const entries = Object.entries(handlers);
  for (const [name, handler] of entries) model.on(`change:${name}`, handler);
  followKernel(model).catch(() => {}); // a front end that has no such model
  return () => entries.forEach(([name, handler]) => model.off(`change:${name}`, handler));
}

/** A name in which a line may break after a scope or a word, as in Python's `_breakable`. @param {string} name @returns {Node[]} */
function breakable(name) {
  const words = name.split(/(?<=\/|\.(?=[A-Za-z_])|_(?=[A-Za-z])|[a-z](?=[A-Z]))/);
  return words.flatMap((word) => [document.createTextNode(word), document.createElement("wbr")]);
}

/** `text` shortened to `width` pixels, by an average character width of 0.56 em. Names beside each other often differ in
 * nothing but the number at their end, which therefore stays: `layers.10` becomes `l…10`, `part 3 of 12` becomes `part 3`.
 * @param {string} text @param {number} width @param {number} size of the font in pixels */
function shortened(text, width, size) {
  const fits = Math.floor(width / (size * 0.56));
  if (text.length <= fits) return text;
  const name = text.replace(/ of \d+$/, "").replace(/^(\D+)(\d+) to \1(\d+)$/, "$1$2–$3");
  if (name.length <= fits) return name;
  const [, number = ""] = /^\D.*?(\d+(?:–\d+)?)$/.exec(name) ?? [];
  if (number && number.length + 2 <= fits) return `${name.slice(0, fits - 1 - number.length)}…${number}`;
  const isAlone = / |[.:/]/.test(name.at(-1 - number.length) ?? "");
  if (number && isAlone && number.length <= fits) return number;
  return fits < 4 ? "" : `${name.slice(0, fits - 1)}…`;
}

/** Whether what belongs to `x` stands at its left: it is not whole at the right, and there is more room at the left.
 * @param {number} x @param {number} wide @param {number} from @param {number} to */
function standsLeft(x, wide, from, to) {
  return x + wide > to && x - from > to - x;
}

/** Where a text stands beside a mark at `x`: whether it ends there or begins there, never before `from`.
 *  @param {number} x @param {number} wide @param {number} from @param {number} to @returns {[boolean, number]} */
function besideMark(x, wide, from, to) {
  const left = standsLeft(x, wide + 7, from, to);
  return [left, left ? Math.min(x - 7, to) : Math.max(x + 7, from)];
}

/** Black or white, whichever reads better on `#RRGGBB`. @param {string} colour */
function textOn(colour) {
  const channel = (/** @type {number} */ k) => parseInt(colour.slice(k, k + 2), 16);
  return 0.299 * channel(1) + 0.587 * channel(3) + 0.114 * channel(5) > 140 ? "#000000" : "#ffffff";
}

/** Ticks of a time axis: a step of 1, 2 or 5 times a power of ten; none where there is no time to divide.
 * @param {number} from @param {number} to @param {number} count at most so many, or nearly */
function ticks(from, to, count) {
  if (to > from && to - from <= 1e-9) return []; // the axis of a view that shows no timeline
  const raw = Math.max((to - from) / Math.max(count, 1), 1e-9);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw) ?? 10 * power;
  const marks = [];
  for (let value = Math.ceil(from / step) * step; value <= to; value += step) marks.push(value);
  return marks;
}

/** Labels of ticks in one unit, with no more digits than tell them apart: 200 ms rather than 200.00 ms.
 * @param {number[]} marks microseconds, ascending @returns {string[]} */
function tickLabels(marks) {
  const most = Math.max(0, ...marks);
  const [unit, size] = most >= 1e6 ? ["s", 1e6] : most >= 1e3 ? ["ms", 1e3] : most >= 1 ? ["us", 1] : ["ns", 1e-3];
  const step = (marks.length > 1 ? marks[1] - marks[0] : most / 10 || 1) / Number(size);
  const digits = Math.min(Math.max(-Math.floor(Math.log10(step) + 1e-9), 0), 6);
  return marks.map((mark) => `${(mark / Number(size)).toFixed(digits)} ${unit}`);
}

/** The label of a tick, centred at `x` but whole between `from` and `to`.
 * @param {CanvasRenderingContext2D} context @param {string} label @param {number} x @param {number} from @param {number} to @param {number} y */
function drawTick(context, label, x, from, to, y) {
  const half = context.measureText(label).width / 2;
  context.fillText(label, Math.max(Math.min(x, to - half - 2), from + half), y);
}

/** A time window `[from, to]` over `[0, span]`, zoomed about a point and kept inside.
 * @param {number[]} window @param {number} span @param {number} at @param {number} factor above 1 shows more */
function zoomedWindow([from, to], span, at, factor) {
  const width = Math.min(Math.max((to - from) * factor, span * 1e-7, 1e-3), span);
  const start = Math.min(Math.max(at - ((at - from) / Math.max(to - from, 1e-12)) * width, 0), span - width);
  return [start, start + width];
}

/** A labelled choice. @param {string} label @param {string} title @param {(value: string) => void} chosen */
function chooser(label, title, chosen) {
  const select = element("select", { class: "bl-select", "aria-label": label, title });
  select.addEventListener("change", () => chosen(select.value));
  const whole = element("label", { class: "bl-group" }, label, select);
  /** @param {string[][]} pairs of value and text @param {string} now */
  const offer = (pairs, now) => {
    select.replaceChildren(...pairs.map(([value, text]) => element("option", { value, selected: value === now }, text)));
    whole.hidden = pairs.length < 2;
  };
  return { whole, offer };
}
