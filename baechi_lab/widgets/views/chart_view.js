// Small charts of the panels: bars or lines as SVG, redrawn at the width that the page gives.

const CHART = { top: 12, right: 14, bottom: 38, left: 56, tick: 11 };
const SVG = "http://www.w3.org/2000/svg";
/** @typedef {{name: string, color: string, x: number[], y: (number | null)[], hollow: boolean[], tips: string[]}} Series */
/** @typedef {{y: number, to?: number, text: string, color: string, dash: boolean}} Rule */
/** @typedef {{kind: string, labels: string[], x: string, y: string, title: string, steps?: boolean, from?: number, to?: number,
 *   ticks?: number[], series: Series[], rules: Rule[]}} Spec */

/** An SVG element. @param {string} tag @param {Record<string, string | number>} attributes @param {string} [text] */
function svg(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Labels at heights `wanted`, moved apart until `gap` lies between them and kept within `[top, bottom]`.
 * @param {number[]} wanted @param {number} gap @param {number} top @param {number} bottom @returns {number[]} */
function apart(wanted, gap, top, bottom) {
  const order = wanted.map((_, k) => k).sort((a, b) => wanted[a] - wanted[b]);
  const placed = wanted.slice();
  let free = top;
  for (const k of order) {
    placed[k] = Math.max(wanted[k], free);
    free = placed[k] + gap;
  }
  let limit = bottom;
  for (const k of order.slice().reverse()) {
    placed[k] = Math.min(placed[k], limit);
    limit = placed[k] - gap;
  }
  return placed;
}

/** A number as an axis shows it. @param {number} value */
function plainNumber(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(4)));
}

/** Where values lie between two ends of pixels. @param {number} low @param {number} high @param {number} from @param {number} to */
function along(low, high, from, to) {
  return (/** @type {number} */ value) => from + ((value - low) / Math.max(high - low, 1e-12)) * (to - from);
}

/** Every height that the chart must hold. @param {Spec} spec */
function heights(spec) {
  const values = spec.series.flatMap((s) => s.y).concat(spec.rules.flatMap((r) => [r.y, r.to ?? r.y]));
  return /** @type {number[]} */ (values.filter((v) => v !== null && Number.isFinite(v)));
}

/** @param {HTMLElement} host @param {Spec} spec @param {number} width @param {number} height */
function drawChart(host, spec, width, height) {
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.title });
  host.replaceChildren(picture);
  const named = spec.series.filter((s) => s.name);
  const bars = spec.kind === "bars";
  const longest = bars ? 0 : Math.max(0, ...named.map((s) => s.name.length));
  const right = width - CHART.right - Math.min(longest * 6.2, width * 0.34);
  const legend = bars && named.length > 1 ? 18 : 0;
  const [top, bottom, left] = [CHART.top + legend + (spec.title ? 16 : 0), height - CHART.bottom, CHART.left];
  if (spec.title) picture.append(svg("text", { x: 4, y: 13, class: "bl-chart-title" }, spec.title));
  const most = Math.max(1e-12, ...heights(spec)) * 1.06;
  const yOf = along(0, most, bottom, top);
  for (const mark of ticks(0, most, Math.max((bottom - top) / 42, 2))) {
    picture.append(svg("line", { x1: left, x2: right, y1: yOf(mark), y2: yOf(mark), class: "bl-chart-grid" }));
    picture.append(svg("text", { x: left - 6, y: yOf(mark) + 4, "text-anchor": "end" }, plainNumber(mark)));
  }
  picture.append(svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "bl-chart-axis" }));
  const side = svg("text", { transform: `translate(12 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, spec.y);
  picture.append(side, svg("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, spec.x));
  if (bars) drawBars(picture, spec, left, right, bottom, yOf);
  else drawLines(picture, spec, left, right, bottom, top, yOf, width - right - 8);
  if (legend) drawKeys(picture, named, left, CHART.top + (spec.title ? 16 : 0) + 4);
  drawRules(picture, spec, left, right, yOf);
}

/** @param {Element} picture @param {Series[]} named @param {number} x @param {number} y */
function drawKeys(picture, named, x, y) {
  for (const { name, color } of named) {
    picture.append(svg("rect", { x, y: y - 8, width: 10, height: 10, style: `fill:${color || "currentColor"}` }));
    picture.append(svg("text", { x: x + 14, y: y + 1 }, name));
    x += 30 + name.length * 6.4;
  }
}

/** @param {Element} picture @param {Spec} spec @param {number} left @param {number} right @param {(v: number) => number} yOf */
function drawRules(picture, spec, left, right, yOf) {
  for (const { y, to, text, color, dash } of spec.rules) {
    if (to !== undefined) {
      const [low, high] = [yOf(y), yOf(to)];
      picture.append(svg("rect", { x: left, width: right - left, y: Math.min(low, high), height: Math.abs(low - high), style: `fill:${color}`, opacity: 0.18 }));
      continue;
    }
    picture.append(svg("line", { x1: left, x2: right, y1: yOf(y), y2: yOf(y), style: `stroke:${color}`, "stroke-width": 1.5, "stroke-dasharray": dash ? "5 4" : "" }));
    picture.append(svg("text", { x: right - 4, y: yOf(y) - 4, "text-anchor": "end", class: "bl-chart-rule" }, text));
  }
}

/** @param {Element} picture @param {Spec} spec @param {number} left @param {number} right @param {number} bottom @param {(v: number) => number} yOf */
function drawBars(picture, spec, left, right, bottom, yOf) {
  const room = (right - left) / Math.max(spec.labels.length, 1);
  const wide = Math.min((room * 0.76) / Math.max(spec.series.length, 1), 46);
  spec.labels.forEach((label, k) => {
    const middle = left + room * (k + 0.5);
    const said = svg("text", { x: middle, y: bottom + 15, "text-anchor": "middle" }, shortened(label, Math.max(room - 2, 24), 11));
    said.append(svg("title", {}, label));
    picture.append(said);
    spec.series.forEach((s, which) => {
      const value = s.y[k];
      if (value === null || !Number.isFinite(value)) return;
      const x = middle + (which - spec.series.length / 2) * wide;
      const bar = svg("rect", {
        x: x + 1, y: yOf(value), width: Math.max(wide - 2, 1), height: Math.max(bottom - yOf(value), 0),
        style: `fill:${s.color || "currentColor"};stroke:${s.color || "currentColor"}`,
        "fill-opacity": s.hollow?.[k] ? 0.12 : 0.85, "stroke-dasharray": s.hollow?.[k] ? "3 3" : "",
      });
      bar.append(svg("title", {}, s.tips?.[k] || `${label}, ${s.name}: ${plainNumber(value)}`));
      picture.append(bar);
    });
  });
}

/** @param {Element} picture @param {Spec} spec @param {number} left @param {number} right @param {number} bottom @param {number} top @param {(v: number) => number} yOf
 * @param {number} room for the names behind the curves */
function drawLines(picture, spec, left, right, bottom, top, yOf, room) {
  const xs = spec.series.flatMap((s) => s.x).filter(Number.isFinite);
  const low = spec.from ?? Math.min(...xs, Infinity);
  const high = spec.to ?? Math.max(...xs, -Infinity);
  if (!(high >= low)) return;
  const pad = spec.steps || high === low ? 0 : (high - low) * 0.03;
  const xOf = high === low ? () => (left + right) / 2 : along(low - pad, high + pad, left, right);
  const marks = spec.ticks ?? ticks(low, high, (right - left) / 70).filter((m) => m >= low - 1e-9 && m <= high + 1e-9);
  for (const mark of marks) picture.append(svg("text", { x: xOf(mark), y: bottom + 15, "text-anchor": "middle" }, plainNumber(mark)));
  /** @type {{series: Series, x: number, y: number}[]} */
  const ends = [];
  for (const s of spec.series) {
    const points = s.x.map((x, k) => ({ x: xOf(x), y: s.y[k] === null ? NaN : yOf(/** @type {number} */ (s.y[k])), k }));
    const there = points.filter((p) => Number.isFinite(p.y));
    const path = there.map((p, k) => (k && spec.steps ? `H${p.x}V${p.y}` : `${k ? "L" : "M"}${p.x} ${p.y}`)).join("");
    const stroke = s.color || "currentColor";
    picture.append(svg("path", { d: path, style: `stroke:${stroke};fill:none`, "stroke-width": 1.8 }));
    for (const { x, y, k } of points) {
      const fits = !s.hollow?.[k];
      const text = s.tips?.[k] || `${s.name}: ${plainNumber(s.y[k] ?? NaN)}`;
      // What does not fit is a cross; without any value it lies on the axis.
      const at = Number.isFinite(y) ? y : bottom;
      const mark = fits
        ? svg("circle", { cx: x, cy: at, r: spec.steps ? 2 : 3.5, style: `fill:${stroke}` })
        : svg("path", { d: `M${x - 4} ${at - 4}l8 8m0 -8l-8 8`, style: `stroke:${stroke};fill:none`, "stroke-width": 2 });
      if (fits && !Number.isFinite(y)) continue;
      const hit = svg("circle", { cx: x, cy: at, r: 8, fill: "transparent" });
      hit.append(svg("title", {}, text));
      picture.append(mark, hit);
    }
    if (s.name && there.length) ends.push({ series: s, x: there[there.length - 1].x, y: there[there.length - 1].y });
  }
  const placed = apart(ends.map((e) => e.y), 13, top + 4, bottom);
  ends.forEach(({ series, x, y }, k) => {
    const color = series.color || "currentColor";
    if (Math.abs(placed[k] - y) > 5) picture.append(svg("line", { x1: x + 5, y1: y, x2: right + 2, y2: placed[k], style: `stroke:${color}`, opacity: 0.5 }));
    const said = svg("text", { x: right + 5, y: placed[k] + 4, style: `fill:${color}`, class: "bl-chart-name" }, shortened(series.name, room, 11));
    said.append(svg("title", {}, series.name));
    picture.append(said);
  });
}

/** @param {{model: Model, el: HTMLElement}} given */
function render({ model, el }) {
  el.classList.add("bl-view", "bl-chart");
  const draw = () => {
    const spec = /** @type {Spec} */ (model.get("spec"));
    const width = el.clientWidth;
    const shown = Boolean(spec && spec.series);
    el.style.height = shown ? `${model.get("height")}px` : "0";
    if (!shown) el.replaceChildren();
    else if (width > 40) drawChart(el, spec, width, model.get("height"));
  };
  const dress = () => markTheme(el);
  const sizes = new ResizeObserver(draw);
  const themes = new MutationObserver(dress);
  sizes.observe(el);
  themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  dress();
  draw();
  const stop = listen(model, { spec: draw, height: draw });
  return () => { stop(); sizes.disconnect(); themes.disconnect(); };
}

export default { render };
