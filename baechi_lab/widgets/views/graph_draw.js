// The graph view's canvas: frames, arrows, boxes, minimap. Arrows are kept as paths in world pixels and drawn through the
// canvas's transform, so that a frame of a pan or zoom strokes a handful of paths. Python joins this text between
// graph_data.js and graph_view.js.

const BAR = 5; // height of the bar of device shares
const HEAD = 7; // length of an arrow's head
const TITLE = 20; // height of a frame's title
const WEIGHTS = 4; // arrows are stroked in as many widths
const MINIMAP = 130;
const LEAST_FONT = 9; // smaller text is not drawn
const SQUEEZE = 1.1; // how much narrower a label may be drawn
const FAINT_BOX = 0.7; // of a box beside those that are chosen: on a dark page its edge must be seen, too

/** Arrows as paths, by what they are (plain, crossing, critical) and by width; made once per scene and paint.
 * @param {Scene} scene @param {Paint} paint @param {boolean} showCritical */
function arrowPaths(scene, paint, showCritical) {
  const groups = new Map();
  for (let a = 0; a < scene.source.length; a += 1) {
    const kind = paint.fits && showCritical && paint.criticalArrow[a] ? "critical" : paint.fits && paint.crossing[a] >= 0 ? "crossing" : "plain";
    const weight = Math.min(Math.floor(((scene.stroke[a] - 0.8) / 3.2) * WEIGHTS), WEIGHTS - 1);
    const key = `${kind} ${weight}`;
    if (!groups.has(key)) groups.set(key, { kind, width: 0.8 + (3.2 * (weight + 0.5)) / WEIGHTS, line: new Path2D(), heads: new Path2D() });
    const group = groups.get(key);
    traceArrow(scene, a, group.line, group.heads);
  }
  const rank = { plain: 0, crossing: 1, critical: 2 };
  return [...groups.values()].sort((a, b) => rank[a.kind] - rank[b.kind]);
}

/** Add one arrow to a path of lines and a path of heads.
 * @param {Scene} scene @param {number} a @param {Path2D | CanvasRenderingContext2D} line @param {Path2D | CanvasRenderingContext2D} heads */
function traceArrow(scene, a, line, heads) {
  const [first, last] = [scene.pointer[a], scene.pointer[a + 1] - 1];
  const axis = scene.upright[a] ? 1 : 0;
  const tip = [scene.points[2 * last], scene.points[2 * last + 1]];
  const sign = tip[axis] >= scene.points[2 * (last - 1) + axis] ? 1 : -1;
  const base = [...tip];
  base[axis] -= sign * (HEAD - 1);
  line.moveTo(scene.points[2 * first], scene.points[2 * first + 1]);
  for (let p = first; p < last; p += 1) {
    const [x0, y0] = [scene.points[2 * p], scene.points[2 * p + 1]];
    const [x1, y1] = p + 1 === last ? base : [scene.points[2 * p + 2], scene.points[2 * p + 3]];
    if (axis) line.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1);
    else line.bezierCurveTo((x0 + x1) / 2, y0, (x0 + x1) / 2, y1, x1, y1);
  }
  const half = 2.2 + scene.stroke[a] / 2;
  const across = axis ? [half, 0] : [0, half];
  heads.moveTo(base[0] + across[0], base[1] + across[1]);
  heads.lineTo(base[0] - across[0], base[1] - across[1]);
  heads.lineTo(tip[0], tip[1]);
  heads.closePath();
}

/** What colours mean, of what is drawn. @param {Paint} paint @param {string[]} colours of devices @param {boolean} showCritical
 * @returns {HTMLElement[]} */
function graphKeys(paint, colours, showCritical) {
  if (!paint.fits) return [];
  const keys = paint.crossing.length ? [lineKey("bl-within", "tensors within a device")] : [];
  if (paint.crossing.some((bytes) => bytes >= 0)) keys.push(lineKey("bl-moving", "tensors to another device"));
  if (showCritical) keys.push(lineKey("bl-critical", "critical path"));
  if (paint.shares.size) {
    const bar = `background-image:linear-gradient(90deg, ${colours[0]} 60%, ${colours[1]} 60%)`;
    keys.push(element("span", { class: "bl-key" }, element("span", { class: "bl-mixed", style: bar }),
      "on several devices: the bar shows their shares of its time"));
  }
  return keys;
}

const HEAT = 0.55; // how strong the colour of the hottest box is: its text must be read on it

/** The colour of a heat: red means critical time, and only that. @param {string} by @param {Theme} theme */
function heatColour(by, theme) {
  return by === "critical share" ? theme.danger : theme.heat;
}

/** What the strength of a box's colour means. @param {ReturnType<typeof readHeat>} heat @returns {(HTMLElement | string)[]} */
function heatKeys(heat) {
  const name = heat.by === "critical share" ? "--bl-danger" : "--bl-series-0";
  const strip = `background:linear-gradient(90deg, transparent, color-mix(in srgb, var(${name}) ${100 * HEAT}%, transparent))`;
  return [`${heat.by}: 0`, element("span", { class: "bl-heat-strip", style: strip }), heat.most];
}

/** Everything but the paths: what one frame of the view draws.
 * @param {CanvasRenderingContext2D} context
 * @param {{scene: Scene, paint: Paint, heat: ReturnType<typeof readHeat>, marks: Marks, dim: Uint8Array, colours: string[], theme: Theme, t: Transform, size: number[],
 *   paths: ReturnType<typeof arrowPaths>, critical: boolean, hovered: number, hoveredArrow: number}} it */
function drawScene(context, it) {
  const { scene, t, theme, size } = it;
  context.fillStyle = theme.background;
  context.fillRect(0, 0, size[0], size[1]);
  const shown = onScreen(scene, t, size);
  drawFrames(context, it);
  drawArrows(context, it);
  for (const i of shown) drawBox(context, it, i);
  drawTitles(context, it);
  if (scene.id.length) drawMinimap(context, it);
  return shown.length;
}

/** Rows of the boxes that can be seen. @param {Scene} scene @param {Transform} t @param {number[]} size */
function onScreen(scene, t, [width, height]) {
  const shown = [];
  for (let i = 0; i < scene.id.length; i += 1) {
    const [x, y] = [scene.x[i] * t.k + t.x, scene.y[i] * t.k + t.y];
    const [w, h] = [(scene.width[i] * t.k) / 2 + 3, (scene.height[i] * t.k) / 2 + 3];
    if (x + w > 0 && x - w < width && y + h > 0 && y - h < height) shown.push(i);
  }
  return shown;
}

function drawFrames(context, { scene, t, theme }) {
  context.strokeStyle = theme.edge;
  context.lineWidth = 1;
  scene.frame.forEach((_, f) => {
    const [x, y, w, h] = scene.frameBox.subarray(4 * f, 4 * f + 4);
    const [left, top] = [(x - w / 2) * t.k + t.x, (y - h / 2) * t.k + t.y];
    context.beginPath();
    context.roundRect(left, top, w * t.k, h * t.k, 6 * Math.min(t.k, 1));
    context.globalAlpha = 0.06;
    context.fillStyle = theme.text;
    context.fill();
    context.globalAlpha = 0.7;
    context.stroke();
    context.globalAlpha = 1;
  });
}

/** Frames' titles stay in sight as long as their frame does. */
function drawTitles(context, { scene, t, theme, size }) {
  const font = Math.min(Math.max(11 * t.k, 9), 13);
  if (11 * t.k < 4.5) return;
  context.font = `600 ${font}px ${theme.font}`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  let covered = CRUMBS;
  scene.frame.forEach((_, f) => {
    const [x, y, w, h] = scene.frameBox.subarray(4 * f, 4 * f + 4);
    const [left, top] = [(x - w / 2) * t.k + t.x, (y - h / 2) * t.k + t.y];
    const [right, bottom] = [left + w * t.k, top + h * t.k];
    if (right < 40 || left > size[0] || bottom < covered + TITLE || top > size[1]) return;
    const text = scene.frameLabels[f];
    if (context.measureText(text).width + 14 > w * t.k) return;
    const [at, line] = [Math.max(left, 0) + 8, Math.max(top + (TITLE / 2 + 2) * t.k, covered)];
    if (top < 0 && line === covered) covered += TITLE;
    drawHaloed(context, text, at, line, theme.faint, theme);
  });
}

function drawArrows(context, { scene, marks, t, theme, paths, critical, hovered, hoveredArrow }) {
  const scale = globalThis.devicePixelRatio || 1;
  context.save();
  context.setTransform(scale * t.k, 0, 0, scale * t.k, scale * t.x, scale * t.y);
  const colours = { plain: theme.edge, crossing: theme.crossing, critical: theme.danger };
  for (const { kind, width, line, heads } of paths) {
    context.globalAlpha = kind === "critical" ? 1 : scene.faint * (critical || marks.any ? 0.5 : 1);
    context.strokeStyle = context.fillStyle = colours[kind];
    context.lineWidth = Math.max(kind === "critical" ? Math.max(width, 2.4) : width, 0.6 / t.k);
    context.stroke(line);
    context.fill(heads);
  }
  context.globalAlpha = 1;
  context.strokeStyle = context.fillStyle = theme.accent;
  for (let a = 0; a < scene.source.length; a += 1) {
    const near = hovered !== UNSEEN && (scene.source[a] === scene.id[hovered] || scene.target[a] === scene.id[hovered]);
    if (a !== hoveredArrow && !near) continue;
    context.lineWidth = Math.max(scene.stroke[a], 1.2 / t.k);
    const heads = new Path2D();
    context.beginPath();
    traceArrow(scene, a, context, heads);
    context.stroke();
    context.fill(heads);
  }
  context.restore();
}

function drawBox(context, { scene, paint, heat, marks, dim, colours, theme, t, critical, hovered }, i) {
  const [w, h] = [scene.width[i] * t.k, scene.height[i] * t.k];
  const [x, y] = [scene.x[i] * t.k + t.x - w / 2, scene.y[i] * t.k + t.y - h / 2];
  const share = paint.shares.get(i);
  const own = paint.fits && !share ? colours[paint.device[i]] : null;
  const faint = (dim.length === scene.id.length && dim[i]) || (marks.any && !marks.chosen[i]);
  context.globalAlpha = 1;
  context.beginPath();
  context.roundRect(x, y, w, h, 4 * Math.min(t.k, 1));
  context.fillStyle = theme.background;
  context.fill();
  context.globalAlpha = faint ? FAINT_BOX : 1;
  if (heat.fits || own) {
    context.globalAlpha *= heat.fits ? HEAT * heat.share[i] : 0.2;
    context.fillStyle = heat.fits ? heatColour(heat.by, theme) : own;
    context.fill();
    context.globalAlpha = faint ? FAINT_BOX : 1;
  }
  drawShares(context, paint, colours, i, [x, y, w, h], t.k);
  context.beginPath();
  context.roundRect(x, y, w, h, 4 * Math.min(t.k, 1));
  context.lineWidth = 1;
  context.strokeStyle = own || theme.faint;
  context.stroke();
  // A label is read on a faint box as well: its colour is fainter, and nothing shines through it.
  context.globalAlpha = 1;
  const readable = heat.fits ? { ...theme, faint: theme.text } : faint ? { ...theme, text: theme.faint } : theme;
  drawLabel(context, scene, paint, readable, i, [x, y, w, h], t.k);
  if (critical && paint.fits && paint.critical[i]) outlineBox(context, [x, y, w, h], theme.danger, 2, 1.5);
  if (marks.hits[i]) outlineBox(context, [x, y, w, h], theme.crossing, 1.5, 3, [4, 3]);
  if (marks.chosen[i]) outlineBox(context, [x, y, w, h], theme.accent, 1.5, 2.5);
  if (i === hovered) outlineBox(context, [x, y, w, h], theme.accent, 1, 1);
}

function drawShares(context, paint, colours, i, [x, y, w, h], k) {
  if (!paint.fits) return;
  const share = paint.shares.get(i);
  const bar = Math.max(BAR * k, 1.5);
  let left = x + 0.5;
  const parts = share ? [...share].map((part, d) => [part, d]) : [[1, paint.device[i]]];
  for (const [part, d] of parts) {
    context.fillStyle = colours[d];
    context.fillRect(left, y + h - bar, (w - 1) * part, bar - 0.5);
    left += (w - 1) * part;
  }
}

function outlineBox(context, [x, y, w, h], colour, lineWidth, grow, dash = []) {
  context.strokeStyle = colour;
  context.lineWidth = lineWidth;
  context.setLineDash(dash);
  context.beginPath();
  context.roundRect(x - grow, y - grow, w + 2 * grow, h + 2 * grow, 4);
  context.stroke();
  context.setLineDash([]);
}

/** The label, larger than the picture's scale where that is small and the box has room, and never smaller than `LEAST_FONT`:
 * where the box has no room for all of it, its beginning. */
function drawLabel(context, scene, paint, theme, i, [x, y, w, h], k) {
  const text = scene.labels[i];
  const font = Math.min(Math.max(11 * k, 10), Math.max(11 * k, (w - 6) / Math.max(text.length * 0.6, 1)), Math.max(h * 0.6, 11 * k));
  if (h < LEAST_FONT + 1) return;
  const note = 9 * k >= LEAST_FONT ? (paint.fits ? paint : scene).notes[i] : "";
  const bar = paint.fits ? Math.max(BAR * k, 1.5) : 0;
  context.textAlign = "center";
  context.textBaseline = "middle";
  const size = Math.max(font, LEAST_FONT);
  context.font = `${size}px ${theme.font}`;
  context.fillStyle = theme.text;
  const words = context.measureText(text).width <= (w - 4) * SQUEEZE ? text : shortened(text, w - 4, size);
  if (words) context.fillText(words, x + w / 2, y + (note ? 11.5 * k : (h - bar) / 2 + 0.5), w - 4);
  if (!note) return;
  context.font = `${9 * k}px ${theme.font}`;
  context.fillStyle = theme.faint;
  context.fillText(note, x + w / 2, y + 25 * k, w - 4);
}

/** Where the minimap lies, and what it shows: left, top, width, height, world left, world top, scale; null while all is in sight.
 * @param {Scene} scene @param {Transform} t @param {number[]} size */
function minimapOf(scene, t, [width, height]) {
  const [x0, y0, x1, y1] = bounds(scene);
  if (x0 * t.k + t.x > -8 && y0 * t.k + t.y > -8 && x1 * t.k + t.x < width + 8 && y1 * t.k + t.y < height + 8) return null;
  const scale = Math.min(MINIMAP / Math.max(x1 - x0, 1), (0.7 * MINIMAP) / Math.max(y1 - y0, 1));
  const [w, h] = [(x1 - x0) * scale, (y1 - y0) * scale];
  return [width - w - 10, height - h - 10, w, h, x0, y0, scale];
}

function drawMinimap(context, { scene, paint, colours, theme, t, size }) {
  const map = minimapOf(scene, t, size);
  if (!map) return;
  const [left, top, w, h, x0, y0, scale] = map;
  context.globalAlpha = 0.92;
  context.fillStyle = theme.background;
  context.fillRect(left - 4, top - 4, w + 8, h + 8);
  context.globalAlpha = 1;
  context.strokeStyle = theme.edge;
  context.lineWidth = 1;
  context.strokeRect(left - 4, top - 4, w + 8, h + 8);
  for (let i = 0; i < scene.id.length; i += 1) {
    context.fillStyle = paint.fits ? colours[paint.device[i]] : theme.edge;
    const [bw, bh] = [Math.max(scene.width[i] * scale, 1.5), Math.max(scene.height[i] * scale, 1.5)];
    context.fillRect(left + (scene.x[i] - x0) * scale - bw / 2, top + (scene.y[i] - y0) * scale - bh / 2, bw, bh);
  }
  const clip = (/** @type {number} */ value, /** @type {number} */ least, /** @type {number} */ most) => Math.min(Math.max(value, least), most);
  const [vx0, vy0] = [clip(left + (-t.x / t.k - x0) * scale, left - 3, left + w), clip(top + (-t.y / t.k - y0) * scale, top - 3, top + h)];
  const vx1 = clip(left + ((size[0] - t.x) / t.k - x0) * scale, left, left + w + 3);
  const vy1 = clip(top + ((size[1] - t.y) / t.k - y0) * scale, top, top + h + 3);
  context.strokeStyle = theme.accent;
  context.lineWidth = 1.5;
  context.strokeRect(vx0, vy0, Math.max(vx1 - vx0, 2), Math.max(vy1 - vy0, 2));
}

const CRUMBS = 34; // pixels below which sticky titles begin: the line of breadcrumbs lies above
