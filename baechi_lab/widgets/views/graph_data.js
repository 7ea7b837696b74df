// What the graph view draws, read from its traits. Python joins this text between common.js and graph_view.js.

/** @typedef {{x: number, y: number, k: number}} Transform world -> screen: `k * world + (x, y)` */
const SCOPE_KIND = 0;
const OP_KIND = 2;
const LONG = 640; // world pixels, ten columns

/** @typedef {ReturnType<typeof readScene>} Scene */
/** @typedef {ReturnType<typeof readPaint>} Paint */

/** Nodes and edges, a column each; `at` finds the row of a node by its id. @param {Model} model */
function readScene(model) {
  const c = model.get("nodes");
  const scene = {
    id: column(c, "id", "i4"), kind: column(c, "kind", "u1"), x: column(c, "x", "f4"), y: column(c, "y", "f4"),
    width: column(c, "width", "f4"), height: column(c, "height", "f4"), time: column(c, "time", "f8"),
    memory: column(c, "memory", "f8"), size: column(c, "size", "i4"), source: column(c, "source", "i4"),
    target: column(c, "target", "i4"), bytes: column(c, "bytes", "f8"), names: texts(c.names), types: texts(c.types),
    forward: texts(c.forward), at: /** @type {Map<number, number>} */ (new Map()), labels: /** @type {string[]} */ ([]),
  };
  scene.id.forEach((id, i) => scene.at.set(id, i));
  scene.labels = scene.names.map((name, i) => {
    const parts = name.split("/");
    // A bare number says nothing: show what it counts.
    const last = parts.slice(/^\d+$/.test(parts[parts.length - 1]) ? -2 : -1).join("/");
    return scene.size[i] > 1 ? `${last} (${scene.size[i]})` : last;
  });
  return scene;
}

/** Where the nodes are placed, and what that costs. @param {Model} model @param {number} devices @param {number} count of the nodes */
function readPaint(model, devices, count) {
  const c = model.get("paint");
  const paint = {
    device: column(c, "device", "u1"), critical: column(c, "critical", "u1"), sent: column(c, "sent", "f8"),
    received: column(c, "received", "f8"), shares: /** @type {Map<number, Float32Array>} */ (new Map()), fits: false,
  };
  const share = column(c, "share", "f4");
  column(c, "mixed", "i4").forEach((node, row) => paint.shares.set(node, share.subarray(row * devices, (row + 1) * devices)));
  // A paint of another scene is on its way to be replaced; until then nothing is coloured.
  paint.fits = paint.device.length === count;
  return paint;
}

/** Nodes and edges grouped by colour once per paint, so that a frame fills one path per group.
 * @param {Pick<Scene, "id" | "source" | "target">} scene @param {Pick<Paint, "fits" | "device" | "critical">} paint
 * @param {string[]} colours */
function groupByColour(scene, paint, colours) {
  const nodes = (colours.length ? colours : [""]).map(() => /** @type {number[]} */ ([]));
  const plain = [];
  const crossing = [];
  const critical = [];
  for (let i = 0; i < scene.id.length; i += 1) nodes[paint.fits ? paint.device[i] % nodes.length : 0].push(i);
  for (let e = 0; e < scene.source.length; e += 1) {
    const [u, v] = [scene.source[e], scene.target[e]];
    if (paint.fits && paint.critical[u] && paint.critical[v]) critical.push(e);
    else if (paint.fits && (paint.device[u] !== paint.device[v])) crossing.push(e);
    else plain.push(e);
  }
  return { nodes, plain, crossing, critical };
}

/** Left, top, right and bottom of all nodes, or of some.
 * @param {Pick<Scene, "id" | "x" | "y" | "width" | "height">} scene @param {number[] | null} only */
function bounds(scene, only = null) {
  const box = [Infinity, Infinity, -Infinity, -Infinity];
  const take = (/** @type {number} */ i) => {
    box[0] = Math.min(box[0], scene.x[i] - scene.width[i] / 2);
    box[1] = Math.min(box[1], scene.y[i] - scene.height[i] / 2);
    box[2] = Math.max(box[2], scene.x[i] + scene.width[i] / 2);
    box[3] = Math.max(box[3], scene.y[i] + scene.height[i] / 2);
  };
  if (only) only.forEach(take);
  else for (let i = 0; i < scene.id.length; i += 1) take(i);
  return box[0] <= box[2] ? box : [0, 0, 1, 1];
}

/** Stroke edges as one path; with `split`, long ones are left out and returned.
 * @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Transform} t @param {number[]} edges
 * @param {number[]} size of the canvas @param {boolean} split */
function strokeEdges(context, scene, t, edges, [width, height], split) {
  const curved = split && t.k > 0.35 && edges.length < 4000;
  const long = [];
  context.beginPath();
  for (const e of edges) {
    const u = scene.source[e];
    const v = scene.target[e];
    const x0 = (scene.x[u] + scene.width[u] / 2) * t.k + t.x;
    const x1 = (scene.x[v] - scene.width[v] / 2) * t.k + t.x;
    const y0 = scene.y[u] * t.k + t.y;
    const y1 = scene.y[v] * t.k + t.y;
    if ((x0 < 0 && x1 < 0) || (x0 > width && x1 > width) || (y0 < 0 && y1 < 0) || (y0 > height && y1 > height)) continue;
    if (split && (x1 < x0 || x1 - x0 > LONG * t.k || Math.abs(y1 - y0) > 0.5 * LONG * t.k)) {
      long.push(e);
      continue;
    }
    context.moveTo(x0, y0);
    if (curved) {
      const bend = Math.max(Math.abs(x1 - x0) * 0.4, 8);
      context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    } else context.lineTo(x1, y1);
  }
  context.stroke();
  return long;
}

/** The device of a node, or the shares of several.
 * @param {Pick<Paint, "fits" | "shares" | "device">} paint @param {string[]} devices @param {number} i */
function devicesOf(paint, devices, i) {
  if (!paint.fits) return "";
  const share = paint.shares.get(i);
  if (!share) return devices[paint.device[i]];
  return [...share].map((part, d) => (part > 0.0005 ? `${devices[d]} ${(part * 100).toFixed(0)}%` : "")).filter(Boolean).join(", ");
}

/** What is said about a node, as rows of name and value; the last is a hint.
 * @param {Scene} scene @param {Paint} paint @param {string[]} devices @param {number} i */
function factsOf(scene, paint, devices, i) {
  const group = scene.kind[i] !== OP_KIND;
  return [
    [group ? (scene.kind[i] === SCOPE_KIND ? "scope of" : "group of") : "type", group ? `${scene.size[i]} ops` : scene.types[i]],
    ["device", devicesOf(paint, devices, i)], ["time", formatTime(scene.time[i])], ["memory", formatBytes(scene.memory[i])],
    ["sends", paint.fits && paint.sent[i] > 0 ? formatBytes(paint.sent[i]) : ""],
    ["receives", paint.fits && paint.received[i] > 0 ? formatBytes(paint.received[i]) : ""],
    ["backward of", scene.forward[i] || ""],
    ["", group ? "double-click to open" : ""],
  ];
}
