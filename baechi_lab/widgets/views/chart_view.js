// Small charts of the panels: bars, lines or points as SVG, redrawn at the width that the page gives.

const CHART = { top: 12, right: 14, bottom: 38, left: 26, tick: 11 };
const MOST_RINGS = 3; // around a mark, of other marks in its place
const NEAR = 5.5; // pixels: the radius of a mark; marks that are closer cover each other and count as in one place
const TALL = 10; // pixels of a count beside marks
/** `ids` make marks that can be clicked; a `dash` line joins points of a chart of points, and has no marks.
 * @typedef {{name: string, color: string, x: number[], y: (number | null)[], hollow: boolean[], tips: string[], ids: number[],
 *   dash: boolean}} Series */
/** A line across at `y`, a band from `y` to `to`, or a line upwards at `x`.
 * @typedef {{y: number, to?: number, x?: number, text: string, color: string, dash: boolean}} Rule */
/** @typedef {{kind: string, labels: string[], x: string, y: string, title: string, steps?: boolean, from?: number, to?: number,
 *   ticks?: number[], series: Series[], rules: Rule[], rows?: string[], cells?: Cell[]}} Spec */
/** Of a heat map: where it stands, what it says, and how good it is. @typedef {{x: number, y: number, text: string, tip: string,
 *   id: number, fits: boolean, front: boolean, good: number}} Cell */
/** A mark in pixels. @typedef {{x: number, y: number, id: number | undefined, text: string}} Spot */
/** Where things lie: pixels of the plot's edges, and of values. @typedef {{left: number, right: number, top: number,
 *   bottom: number, width: number, xOf: (v: number) => number, yOf: (v: number) => number}} Plot */

/** @type {CanvasRenderingContext2D | null} */
let ruler = null;
/** Pixels that a text takes in a chart. @param {string} text */
function textWidth(text) {
  return (ruler ?? rulerOf("Inter, Helvetica, Arial, sans-serif")).measureText(text).width;
}

/** Measure texts in the font of the page. @param {string} family */
function rulerOf(family) {
  ruler ??= /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  ruler.font = `600 11px ${family}`;
  return ruler;
}

/** The marks that a click at a place means: the nearest, and those that lie where it lies.
 * @param {Spot[]} spots @param {number} x @param {number} y @returns {Spot[]} */
function spotsAt(spots, x, y) {
  const far = (/** @type {Spot} */ spot) => Math.hypot(spot.x - x, spot.y - y);
  const nearest = spots.reduce((best, spot, k) => (far(spot) < far(spots[best]) ? k : best), 0);
  const firsts = firstInPlace(spots);
  return spots.filter((_, k) => firsts[k] === firsts[nearest]);
}

/** A mark of a chart; an open one does not fit. @typedef {{x: number, y: number, stroke: string, open: boolean}} Mark */
/** For each mark the position of the first one in its place: every mark is in one place, so that counts of places add up to the marks.
 * @param {{x: number, y: number}[]} marks @returns {number[]} */
function firstInPlace(marks) {
  /** @type {number[]} */
  const firsts = [];
  return marks.map(({ x, y }, k) => {
    const first = firsts.find((n) => Math.hypot(marks[n].x - x, marks[n].y - y) < NEAR);
    if (first === undefined) firsts.push(k);
    return first ?? k;
  });
}

/** Radii of marks, so that each colour is seen: of those in one place, every later colour is drawn smaller, above the one before.
 * @param {Mark[]} marks in the order in which they are drawn @param {number} radius of a mark alone @returns {number[]} */
function ringRadii(marks, radius) {
  const firsts = firstInPlace(marks);
  return marks.map((mark, k) => {
    const above = new Set(marks.filter((_, n) => n > k && firsts[n] === firsts[k]).map(({ stroke }) => stroke));
    above.delete(mark.stroke);
    return radius + 3 * Math.min(above.size, MOST_RINGS);
  });
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
  const values = spec.series.flatMap((s) => s.y).concat(spec.rules.filter((r) => r.x === undefined).flatMap((r) => [r.y, r.to ?? r.y]));
  return /** @type {number[]} */ (values.filter((v) => v !== null && Number.isFinite(v)));
}

/** The upper end of the vertical axis: 1 where all is 0, or where there is nothing. @param {Spec} spec */
const upperEnd = (spec) => (Math.max(0, ...heights(spec)) || 1) * 1.06;

/** The keys of the series in rows that fit `width`: for each its row and where it begins there.
 * @param {string[]} names @param {number} width @returns {number[][]} */
function keyPlaces(names, width) {
  let [row, x] = [0, 0];
  return names.map((name) => {
    const wide = 30 + textWidth(name);
    if (x > 0 && x + wide > width) [row, x] = [row + 1, 0];
    x += wide;
    return [row, x - wide];
  });
}

/** Names below the bars are turned where one of them is wider than its place. @param {Spec} spec @param {number} room */
const turned = (spec, room) => spec.kind === "bars" && spec.labels.some((label) => textWidth(label) > room - 4);

/** @param {HTMLElement} host @param {Spec} spec @param {number} width @param {number} height @param {(ids: number[]) => void} clicked */
function drawChart(host, spec, width, height, clicked) {
  rulerOf(getComputedStyle(host).fontFamily);
  const pressed = spec.kind === "heat" || spec.series.some((s) => s.ids?.length);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: pressed ? "group" : "img", "aria-label": spec.title || spec.y });
  host.replaceChildren(picture);
  if (spec.kind === "heat") return drawHeat(picture, spec, width, height, clicked);
  const named = spec.series.filter((s) => s.name);
  const bars = spec.kind === "bars";
  const title = spec.title ? 16 : 0;
  const most = upperEnd(spec);
  const marks = ticks(0, most, Math.max((height - 60) / 42, 2));
  let left = CHART.left + Math.max(...marks.map((mark) => textWidth(plainNumber(mark))));
  const ruled = spec.rules.map((r) => r.text);
  const beside = { lines: [...named.map((s) => s.name), ...ruled], bars: ruled, points: [] }[spec.kind] ?? [];
  const longest = Math.max(0, ...beside.map(textWidth));
  const right = width - CHART.right - (longest ? Math.min(longest + 8, width * 0.45) : 0);
  const turn = turned(spec, (right - left) / Math.max(spec.labels.length, 1));
  const label = turn ? Math.max(...spec.labels.map(textWidth)) : 0;
  left = turn ? Math.max(left, label * 0.87 + 4 - (right - left) / spec.labels.length / 2) : left;
  const keyed = bars ? named.length > 1 : spec.kind === "points"; // names beside points would cover points
  const places = keyed ? keyPlaces(named.map((s) => s.name), right - left) : [];
  const top = CHART.top + title + (places.length ? 17 * (places[places.length - 1][0] + 1) : 0);
  const bottom = height - CHART.bottom - label * 0.5 + (spec.x ? 0 : 14);
  if (spec.title) picture.append(svg("text", { x: 4, y: 13, class: "bl-chart-title" }, spec.title));
  /** @type {Plot} */
  const plot = { left, right, top, bottom, width, xOf: () => left, yOf: along(0, most, bottom, top) };
  for (const mark of marks) {
    const y = plot.yOf(mark);
    picture.append(svg("line", { x1: left, x2: right, y1: y, y2: y, class: "bl-chart-grid" }));
    picture.append(svg("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, plainNumber(mark)));
  }
  picture.append(svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "bl-chart-axis" }));
  const side = svg("text", { transform: `translate(12 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, spec.y);
  picture.append(side, svg("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, spec.x));
  const lines = !bars && setAxis(picture, spec, plot);
  if (bars) drawBars(picture, spec, plot, turn);
  else if (lines) drawLines(picture, spec, plot, clicked);
  drawKeys(picture, named, places, left, CHART.top + title + 4);
  drawRules(picture, spec, plot, lines && spec.kind === "lines");
}

/** A heat map: cells with their values, columns named below. @param {Element} picture @param {Spec} spec @param {number} width @param {number} height
 * @param {(ids: number[]) => void} clicked */
function drawHeat(picture, spec, width, height, clicked) {
  const [rows, cells] = [spec.rows ?? [], spec.cells ?? []];
  const left = Math.min(Math.max(...rows.map(textWidth), 0) + 10, width * 0.4);
  const wide = Math.min((width - left - CHART.right) / Math.max(spec.labels.length, 1), 150);
  const tall = (height - 40) / Math.max(rows.length, 1);
  picture.append(svg("text", { x: 4, y: 13, class: "bl-chart-title" }, spec.title));
  rows.forEach((name, k) => picture.append(svg("text", { x: left - 6, y: 20 + tall * (k + 0.5) + 4, "text-anchor": "end" }, shortened(name, left - 8, 11))));
  spec.labels.forEach((name, k) => picture.append(svg("text", { x: left + wide * (k + 0.5), y: height - 6, "text-anchor": "middle" }, shortened(name, wide, 11))));
  for (const { x, y, text, tip, id, fits, front, good } of cells) {
    const cell = pressable("g", { class: "bl-chart-hit bl-chart-cell", "aria-label": tip, "data-id": id }, () => clicked([id]));
    const fill = fits ? `color-mix(in srgb, var(--bl-series-0) ${Math.round(8 + 42 * good)}%, var(--bl-background))` : "var(--bl-panel)";
    const said = `${front ? "◆ " : ""}${fits ? "" : "✗ "}${text}`;
    cell.append(
      svg("rect", { x: left + wide * x + 1, y: 20 + tall * y + 1, width: Math.max(wide - 2, 1), height: Math.max(tall - 2, 1), style: `fill:${fill}`, class: front ? "bl-chart-front" : "" }),
      svg("text", { x: left + wide * (x + 0.5), y: 20 + tall * (y + 0.5) + 4, "text-anchor": "middle" }, textWidth(said) <= wide - 4 ? said : shortened(said, wide - 4, 11)),
      svg("title", {}, tip));
    picture.append(cell);
  }
}

/** An SVG element that is a button, for the pointer and for keys. @param {string} tag @param {Record<string, string | number>} attributes
 * @param {(event: MouseEvent | null) => void} pressed with the event of a click, or null for a key @returns {SVGElement} */
function pressable(tag, attributes, pressed) {
  const node = svg(tag, { ...attributes, tabindex: "0", role: "button" });
  node.addEventListener("click", pressed);
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    pressed(null);
  });
  return node;
}

/** @param {Element} picture @param {Series[]} named @param {number[][]} places @param {number} left @param {number} top */
function drawKeys(picture, named, places, left, top) {
  places.forEach(([row, at], k) => {
    const [x, y] = [left + at, top + 17 * row];
    picture.append(svg("rect", { x, y: y - 8, width: 10, height: 10, style: `fill:${named[k].color || "currentColor"}` }));
    picture.append(svg("text", { x: x + 14, y: y + 1 }, named[k].name));
  });
}

/** Where a text at the height `y` ends: at `end`, or beside those that it would cover. @param {[number, number][]} placedTexts
 *  @param {number} end @param {number} y @param {string} text */
function textEnd(placedTexts, end, y, text) {
  const free = Math.min(end, ...placedTexts.filter(([at]) => Math.abs(at - y) < 12).map(([, from]) => from - 8));
  if (text) placedTexts.push([y, free - textWidth(text)]);
  return free;
}

/** @param {Element} picture @param {Spec} spec @param {Plot} plot @param {boolean} named their names stand with those of lines */
function drawRules(picture, spec, { left, right, top, bottom, xOf, yOf }, named) {
  /** @type {[number, number][]} y and left end of the texts on lines that are there already */
  const placedTexts = [];
  for (const { y, to, x, text, color, dash } of spec.rules) {
    const look = { style: `stroke:${color}`, "stroke-width": 1.5, "stroke-dasharray": dash ? "5 4" : "" };
    if (to !== undefined) {
      const [low, high] = [yOf(y), yOf(to)];
      picture.append(svg("rect", { x: left, width: right - left, y: Math.min(low, high), height: Math.abs(low - high), style: `fill:${color}`, opacity: 0.18 }));
    } else if (x !== undefined) {
      picture.append(svg("line", { x1: xOf(x), x2: xOf(x), y1: top, y2: bottom, ...look }));
      const before = xOf(x) + textWidth(text) + 8 > right;
      picture.append(svg("text", { x: xOf(x) + (before ? -4 : 4), y: top + 8, "text-anchor": before ? "end" : "start", class: "bl-chart-rule" }, text));
    } else {
      picture.append(svg("line", { x1: left, x2: right, y1: yOf(y), y2: yOf(y), ...look }));
      if (named) continue;
      /** @type {Record<string, string | number>} */
      const place = spec.kind === "bars" ? { x: right + 6, y: yOf(y) + 4 } : { x: textEnd(placedTexts, right - 4, yOf(y), text), y: yOf(y) - 4, "text-anchor": "end" };
      picture.append(svg("text", { ...place, class: "bl-chart-rule" }, text));
    }
  }
}

/** @param {Element} picture @param {Spec} spec @param {Plot} plot @param {boolean} turn the names are turned */
function drawBars(picture, spec, { left, right, bottom, yOf }, turn) {
  const room = (right - left) / Math.max(spec.labels.length, 1);
  const wide = Math.min((room * 0.76) / Math.max(spec.series.length, 1), 46);
  spec.labels.forEach((label, k) => {
    const middle = left + room * (k + 0.5);
    /** @type {Record<string, string | number>} */
    const place = turn
      ? { transform: `translate(${middle + 4} ${bottom + 12}) rotate(-30)`, "text-anchor": "end" }
      : { x: middle, y: bottom + 15, "text-anchor": "middle" };
    picture.append(svg("text", place, label));
    // Bars of no height leave no gap: the others stand in the middle above the name.
    const visible = spec.series.filter((s) => (s.y[k] ?? 0) > 0);
    visible.forEach((s, which) => {
      const value = /** @type {number} */ (s.y[k]);
      const x = middle + (which - visible.length / 2) * wide;
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

/** The horizontal axis of numbers; false where there is nothing to show. @param {Element} picture @param {Spec} spec @param {Plot} plot */
function setAxis(picture, spec, plot) {
  const { left, right, bottom } = plot;
  const xs = spec.series.flatMap((s) => s.x).concat(spec.rules.flatMap((r) => r.x ?? [])).filter(Number.isFinite);
  const low = spec.from ?? Math.min(...xs, Infinity);
  const high = spec.to ?? Math.max(...xs, -Infinity);
  if (!(high >= low)) return false;
  const pad = spec.steps || high === low ? 0 : (high - low) * 0.03;
  const begin = spec.from === undefined ? low - pad : low;
  plot.xOf = high === low ? () => (left + right) / 2 : along(begin, high + pad, left, right);
  const marks = spec.ticks ?? ticks(low, high, (right - left) / 70).filter((m) => m >= low - 1e-9 && m <= high + 1e-9);
  for (const mark of marks) picture.append(svg("text", { x: plot.xOf(mark), y: bottom + 15, "text-anchor": "middle" }, plainNumber(mark)));
  return true;
}

/** @param {Element} picture @param {Spec} spec @param {Plot} plot @param {(ids: number[]) => void} clicked */
function drawLines(picture, spec, plot, clicked) {
  const { xOf, yOf } = plot;
  /** @type {Spot[]} */
  const spots = [];
  /** @type {Mark[]} */
  const marks = [];
  /** @type {{series: Series, x: number, y: number}[]} */
  const ends = [];
  for (const s of spec.series) {
    const points = s.x.map((x, k) => ({ x: xOf(x), y: s.y[k] === null ? NaN : yOf(/** @type {number} */ (s.y[k])), k }));
    const there = points.filter((p) => Number.isFinite(p.y)); // without a value there is no mark
    const path = there.map((p, k) => (k && spec.steps ? `H${p.x}V${p.y}` : `${k ? "L" : "M"}${p.x} ${p.y}`)).join("");
    const stroke = s.color || "currentColor";
    if (spec.kind === "lines" || s.dash) {
      picture.append(svg("path", { d: path, style: `stroke:${stroke};fill:none`, "stroke-width": s.dash ? 1.2 : 1.8, "stroke-dasharray": s.dash ? "2 4" : "" }));
    }
    if (s.dash) continue;
    for (const { x, y, k } of there) {
      spots.push({ x, y, id: s.ids?.[k], text: s.tips?.[k] || `${s.name}: ${plainNumber(s.y[k] ?? NaN)}` });
      marks.push({ x, y, stroke, open: Boolean(s.hollow?.[k]) });
    }
    if (s.name && spec.kind === "lines") ends.push(...there.slice(-1).map(({ x, y }) => ({ series: s, x, y })));
  }
  drawMarks(picture, marks, spec, plot);
  const across = spec.rules.filter((r) => spec.kind === "lines" && r.x === undefined && r.text);
  const ruleEnds = across.map(({ text, color, y }) => ({ series: { name: text, color }, x: plot.right, y: yOf(y) }));
  drawNames(picture, plot, [...ends, ...ruleEnds]);
  picture.append(...spots.map((spot) => hitArea(spots, spot, clicked))); // above names, whose lines begin in the marks
}

/** Where the number of the marks in one place stands: as near as it covers no mark and no other number, within the plot if that is possible.
 * @param {{x: number, y: number, radius: number}} place @param {{x: number, y: number, radius: number}[]} circles of all marks
 * @param {{x: number, y: number, wide: number}[]} counts that stand there already, by left edge and middle @param {number} wide
 * @param {{left: number, top: number, right: number, bottom: number}} plot @returns {{x: number, y: number}} its left edge and its middle */
function countPlace({ x, y, radius }, circles, counts, wide, plot) {
  const places = [1, 8, 16, 24, 32].flatMap((away) => [y - radius - 1 - away, y + radius + 1 + away].flatMap((middle) =>
    [x + radius + away, x - radius - away - wide].map((left) => ({ x: left, y: middle }))));
  const isInPlot = (/** @type {{x: number, y: number}} */ at) =>
    at.x >= plot.left && at.x + wide <= plot.right && at.y - TALL / 2 >= plot.top && at.y + TALL / 2 <= plot.bottom;
  const covers = (/** @type {{x: number, y: number}} */ at) =>
    circles.some((circle) => {
      const [dx, dy] = [Math.max(at.x - circle.x, circle.x - at.x - wide, 0), Math.max(Math.abs(circle.y - at.y) - TALL / 2, 0)];
      return Math.hypot(dx, dy) < circle.radius;
    }) || counts.some((other) => at.x < other.x + other.wide + 3 && other.x < at.x + wide + 3 && Math.abs(at.y - other.y) < TALL + 2);
  return places.find((at) => isInPlot(at) && !covers(at)) ?? places.find(isInPlot) ?? places[0];
}

/** Marks: as rings where several colours lie in one place, with their number beside them, and with an edge in a chart of points.
 * @param {Element} picture @param {Mark[]} marks @param {Spec} spec @param {Plot} plot */
function drawMarks(picture, marks, spec, plot) {
  const isPoints = spec.kind === "points";
  const radii = ringRadii(marks, isPoints ? NEAR : spec.steps ? 2 : 3.5);
  marks.forEach(({ x, y, stroke, open }, k) => {
    if (isPoints) picture.append(svg("circle", { cx: x, cy: y, r: radii[k] + 1, style: "fill:var(--bl-background)" }));
    picture.append(svg("circle", { cx: x, cy: y, r: radii[k], style: `stroke:${stroke};fill:${open ? "none" : stroke}`, "stroke-width": open ? 2 : 0 }));
  });
  if (!isPoints) return;
  const [firsts, circles] = [firstInPlace(marks), marks.map(({ x, y }, k) => ({ x, y, radius: radii[k] + 1 }))];
  /** @type {{x: number, y: number, wide: number}[]} */
  const counts = [];
  for (const first of new Set(firsts)) {
    const together = circles.filter((_, k) => firsts[k] === first);
    if (together.length < 2) continue;
    const [text, radius] = [`${together.length} ×`, Math.max(...together.map((circle) => circle.radius))];
    const place = { ...countPlace({ ...circles[first], radius }, circles, counts, textWidth(text), plot), wide: textWidth(text) };
    counts.push(place);
    const { x, y } = circles[first];
    const near = place.x > x ? place.x : place.x + place.wide;
    if (Math.hypot(near - x, place.y - y) > radius + 14) picture.append(svg("line", { x1: x, y1: y, x2: near, y2: place.y, class: "bl-chart-leader" }));
    picture.append(svg("text", { x: place.x, y: place.y + 4 }, text));
  }
}

/** What is pointed at around a mark. Areas may cover each other: a click means the nearest mark, and of several in one place
 * one after the other. @param {Spot[]} spots @param {Spot} spot @param {(ids: number[]) => void} clicked */
function hitArea(spots, spot, clicked) {
  const area = { cx: spot.x, cy: spot.y, r: 9, fill: "transparent" };
  const id = spot.id;
  const hit = id === undefined ? svg("circle", area) : pressable("circle", { ...area, class: "bl-chart-hit", "aria-label": spot.text }, (event) => {
    if (!event) return clicked([id]);
    const { left, top } = /** @type {Element} */ (hit.ownerSVGElement).getBoundingClientRect();
    return clicked(spotsAt(spots, event.clientX - left, event.clientY - top).flatMap((there) => there.id ?? []));
  });
  hit.append(svg("title", {}, spotsAt(spots, spot.x, spot.y).map(({ text }) => text).join("\n")));
  return hit;
}

/** Names at the ends of lines, right of the plot; those that would overlap are moved apart.
 * @param {Element} picture @param {Plot} plot @param {{series: {name: string, color: string}, x: number, y: number}[]} ends */
function drawNames(picture, { right, top, bottom, width }, ends) {
  const placed = apart(ends.map((e) => e.y), 13, top + 4, bottom);
  ends.forEach(({ series, x, y }, k) => {
    const color = series.color || "currentColor";
    const [at, room] = [right + 5, width - right - 6];
    if (Math.abs(placed[k] - y) > 5) picture.append(svg("line", { x1: x, y1: y, x2: at - 2, y2: placed[k], style: `stroke:${color}`, opacity: 0.5 }));
    const shown = textWidth(series.name) <= room ? series.name : shortened(series.name, room, 11);
    const said = svg("text", { x: at, y: placed[k] + 4, style: `fill:color-mix(in srgb, ${color} 72%, var(--bl-text))`, class: "bl-chart-name" }, shown);
    said.append(svg("title", {}, series.name));
    picture.append(said);
  });
}

/** @param {{model: Model, el: HTMLElement}} given */
function render({ model, el }) {
  el.classList.add("bl-view", "bl-chart");
  const clicked = (/** @type {number[]} */ ids) => {
    model.set("clicked", ids[(ids.indexOf(model.get("clicked")) + 1) % ids.length]);
    model.save_changes();
  };
  const draw = () => {
    const spec = /** @type {Spec} */ (model.get("spec"));
    const width = el.clientWidth;
    const shown = Boolean(spec && spec.series);
    el.classList.toggle("bl-empty", !shown);
    // The page may leave more room than the chart needs: a rule of the panel says so by a least height.
    const height = Math.max(model.get("height"), parseFloat(getComputedStyle(el).minHeight) || 0);
    el.style.height = shown ? `${model.get("height")}px` : "0"; // with that least height: a lower window makes it low again
    if (!shown) el.replaceChildren();
    else if (width > 40) {
      drawChart(el, spec, width, height, clicked);
      rove(el);
    }
  };
  const sizes = new ResizeObserver(draw);
  sizes.observe(el);
  draw();
  const stop = listen(model, { spec: draw, height: draw });
  return () => { stop(); sizes.disconnect(); };
}

export default { render };
