// What the graph view draws, read from its traits. Python joins this text between common.js and graph_draw.js.

/** @typedef {{x: number, y: number, k: number}} Transform world -> screen: `k * world + (x, y)` */
const OP_KIND = 1;

/** @typedef {ReturnType<typeof readScene>} Scene */
/** @typedef {ReturnType<typeof readPaint>} Paint */
/** @typedef {ReturnType<typeof readMarks>} Marks */

/** Boxes, frames and arrows, a column each; `at` finds the row of a box by its id, `frameAt` that of a frame.
 * @param {Model} model */
function readScene(model) {
  const c = model.get("nodes");
  const scene = {
    id: column(c, "id", "i4"), kind: column(c, "kind", "u1"), x: column(c, "x", "f4"), y: column(c, "y", "f4"),
    width: column(c, "width", "f4"), height: column(c, "height", "f4"), time: column(c, "time", "f8"),
    persistent: column(c, "persistent", "f8"), made: column(c, "made", "f8"), size: column(c, "size", "i4"), parent: column(c, "parent", "i4"),
    names: texts(c.names), labels: texts(c.labels), notes: texts(c.notes), types: texts(c.types), forward: texts(c.forward),
    frame: column(c, "frame", "i4"), frameBox: column(c, "frame_box", "f4"), frameParent: column(c, "frame_parent", "i4"),
    frameSize: column(c, "frame_size", "i4"), frameNames: texts(c.frame_names), frameLabels: texts(c.frame_labels),
    source: column(c, "source", "i4"), target: column(c, "target", "i4"), bytes: column(c, "bytes", "f8"),
    tensors: column(c, "tensors", "i4"), pointer: column(c, "pointer", "i4"), points: column(c, "points", "f4"),
    upright: column(c, "upright", "u1"), stroke: column(c, "stroke", "f4"), faint: column(c, "faint", "f4")[0] || 1,
    at: /** @type {Map<number, number>} */ (new Map()), frameAt: /** @type {Map<number, number>} */ (new Map()),
  };
  scene.id.forEach((id, i) => scene.at.set(id, i));
  scene.frame.forEach((id, i) => scene.frameAt.set(id, i));
  return scene;
}

/** Where the boxes are placed, and what that costs. @param {Model} model @param {number} devices @param {number} count of the boxes */
function readPaint(model, devices, count) {
  const c = model.get("paint");
  const paint = {
    device: column(c, "device", "u1"), time: column(c, "time", "f8"), critical: column(c, "critical", "u1"), sent: column(c, "sent", "f8"),
    received: column(c, "received", "f8"), crossing: column(c, "crossing", "f8"), criticalArrow: column(c, "critical_arrow", "u1"), notes: texts(c.notes),
    shares: /** @type {Map<number, Float32Array>} */ (new Map()), fits: false,
  };
  const share = column(c, "share", "f4");
  column(c, "mixed", "i4").forEach((node, row) => paint.shares.set(node, share.subarray(row * devices, (row + 1) * devices)));
  // A paint of another scene is on its way to be replaced; until then nothing is coloured.
  paint.fits = paint.device.length === count;
  return paint;
}

/** How hot each box is beside the hottest one, and what is said of that; `fits` while it is of these boxes.
 * @param {Model} model @param {number} count of the boxes */
function readHeat(model, count) {
  const c = model.get("heat") ?? {};
  const heat = { share: column(c, "share", "f4"), texts: texts(c.texts), by: String(c.by ?? ""), most: String(c.most ?? ""), meaning: String(c.meaning ?? ""), fits: false };
  heat.fits = count > 0 && heat.share.length === count;
  return heat;
}

/** How many selected and how many found ops each box holds. @param {Model} model @param {number} count of the boxes */
function readMarks(model, count) {
  const c = model.get("marks");
  const marks = { chosen: column(c, "chosen", "i4"), hits: column(c, "hits", "i4"), any: false };
  if (marks.chosen.length !== count) marks.chosen = new Int32Array(count);
  if (marks.hits.length !== count) marks.hits = new Int32Array(count);
  marks.any = marks.chosen.some((n) => n > 0);
  return marks;
}

/** Left, top, right and bottom of a box or frame. @param {Scene} scene @param {number} node */
function extentOf(scene, node) {
  const i = scene.at.get(node);
  if (i !== undefined) {
    const [w, h] = [scene.width[i] / 2, scene.height[i] / 2];
    return [scene.x[i] - w, scene.y[i] - h, scene.x[i] + w, scene.y[i] + h];
  }
  const f = scene.frameAt.get(node);
  if (f === undefined) return null;
  const [x, y, w, h] = scene.frameBox.subarray(4 * f, 4 * f + 4);
  return [x - w / 2, y - h / 2, x + w / 2, y + h / 2];
}

/** Left, top, right and bottom of everything, or of some boxes and frames.
 * @param {Scene} scene @param {number[] | null} only ids */
function bounds(scene, only = null) {
  const box = [Infinity, Infinity, -Infinity, -Infinity];
  const take = (/** @type {number[] | null} */ found) => {
    if (!found) return;
    for (const k of [0, 1]) box[k] = Math.min(box[k], found[k]);
    for (const k of [2, 3]) box[k] = Math.max(box[k], found[k]);
  };
  if (only) only.forEach((id) => take(extentOf(scene, id)));
  else {
    scene.id.forEach((id) => take(extentOf(scene, id)));
    scene.frame.forEach((id) => take(extentOf(scene, id)));
    for (let p = 0; p < scene.points.length; p += 2) take([scene.points[p], scene.points[p + 1], scene.points[p], scene.points[p + 1]]);
  }
  return box[0] <= box[2] ? box : [0, 0, 1, 1];
}

/** The frames around a box or frame, the outermost first, as ids. @param {Scene} scene @param {number} node */
function framesAround(scene, node) {
  const i = scene.at.get(node);
  const f = scene.frameAt.get(node);
  let parent = i !== undefined ? scene.parent[i] : f !== undefined ? scene.frameParent[f] : 0;
  const frames = [];
  while (parent > 0) {
    frames.unshift(parent);
    const above = scene.frameAt.get(parent);
    parent = above === undefined ? 0 : scene.frameParent[above];
  }
  return frames;
}

/** The innermost frame at a point of the world, or `UNSEEN`. @param {Scene} scene @param {number} x @param {number} y */
function frameAtPoint(scene, x, y) {
  for (let f = scene.frame.length - 1; f >= 0; f -= 1) {
    const [left, top, right, bottom] = /** @type {number[]} */ (extentOf(scene, scene.frame[f]));
    if (x >= left && x <= right && y >= top && y <= bottom) return scene.frame[f];
  }
  return UNSEEN;
}

/** Every arrow's points, as straight pieces of its curve, for hit tests. @param {Scene} scene @param {number} arrow */
function piecesOf(scene, arrow) {
  const pieces = [];
  for (let p = scene.pointer[arrow]; p < scene.pointer[arrow + 1] - 1; p += 1) {
    const [x0, y0, x1, y1] = scene.points.subarray(2 * p, 2 * p + 4);
    for (let s = 0; s <= 8; s += 1) {
      const u = s / 8;
      const ease = u * u * (3 - 2 * u); // a curve that leaves and arrives along the axis, as drawn
      const [along, across] = [1.5 * u * (1 - u) + u * u * u, ease];
      pieces.push(scene.upright[arrow] ? [x0 + (x1 - x0) * across, y0 + (y1 - y0) * along] : [x0 + (x1 - x0) * along, y0 + (y1 - y0) * across]);
    }
  }
  return pieces;
}

/** The arrow within `reach` of a point of the world, or `UNSEEN`.
 * @param {Scene} scene @param {number} x @param {number} y @param {number} reach */
function arrowAt(scene, x, y, reach) {
  let best = UNSEEN;
  let nearest = reach * reach;
  for (let a = 0; a < scene.source.length; a += 1) {
    const pieces = piecesOf(scene, a);
    for (let k = 1; k < pieces.length; k += 1) {
      const [[x0, y0], [x1, y1]] = [pieces[k - 1], pieces[k]];
      const [dx, dy] = [x1 - x0, y1 - y0];
      const u = Math.min(Math.max(((x - x0) * dx + (y - y0) * dy) / Math.max(dx * dx + dy * dy, 1e-9), 0), 1);
      const distance = (x - x0 - u * dx) ** 2 + (y - y0 - u * dy) ** 2;
      if (distance < nearest) [best, nearest] = [a, distance];
    }
  }
  return best;
}

/** What a box or frame is called. @param {Scene} scene @param {number} node */
function titleOf(scene, node) {
  const i = scene.at.get(node);
  if (i !== undefined) return scene.names[i];
  const f = scene.frameAt.get(node);
  return f === undefined ? "graph" : scene.frameNames[f];
}

/** What is said about an arrow, as rows of name and value. @param {Scene} scene @param {Paint} paint @param {number} arrow */
function arrowFacts(scene, paint, arrow) {
  const moved = paint.fits ? paint.crossing[arrow] : -1;
  return [
    ["tensors", scene.tensors[arrow].toLocaleString("en")], ["bytes", formatBytes(scene.bytes[arrow])],
    ["of that to another device", moved >= 0 ? formatBytesBeside(moved, scene.bytes[arrow]) : ""],
    ["critical path", paint.fits && paint.criticalArrow[arrow] ? "runs through it" : ""],
  ];
}

/** The device of a box, or the shares of several.
 * @param {Pick<Paint, "fits" | "shares" | "device">} paint @param {string[]} devices @param {number} i */
function devicesOf(paint, devices, i) {
  if (!paint.fits) return "";
  const share = paint.shares.get(i);
  if (!share) return devices[paint.device[i]];
  return [...share].map((part, d) => (part > 0.0005 ? `${devices[d]} ${formatShare(part)}` : "")).filter(Boolean).join(", ");
}

/** What is said about a box, as rows of name and value; the last is a hint.
 * @param {Scene} scene @param {Paint} paint @param {string[]} devices @param {number} i */
function factsOf(scene, paint, devices, i) {
  const group = scene.kind[i] !== OP_KIND;
  const [keeps, makes, sends, receives] = [scene.persistent[i], scene.made[i], ...(paint.fits ? [paint.sent[i], paint.received[i]] : [0, 0])];
  const bytes = (/** @type {number} */ value, words = "") => (value > 0 ? formatBytesBeside(value, Math.max(keeps, makes, sends, receives)) + words : "");
  return [
    [group ? "holds" : "type", group ? opsInWords(scene.size[i]) : scene.types[i]],
    ["device", devicesOf(paint, devices, i)], ["time", formatTime((paint.fits ? paint : scene).time[i])],
    ["keeps", bytes(keeps, " all the time")], [group ? "makes in turn" : "makes", bytes(makes, group ? ", not all held at once" : "")],
    ["sends", bytes(sends)], ["receives", bytes(receives)],
    ["backward of", scene.forward[i] || ""],
    ["", group ? "double-click to open" : ""],
  ];
}

/** The box that is next in a direction: near, and rather ahead than beside; from nowhere, the first in that direction.
 * @param {Pick<Scene, "x" | "y" | "id">} scene @param {number} from position of a box, negative for none
 * @param {number} dx @param {number} dy one of them is 1 or -1, the other 0 */
function boxTowards(scene, from, dx, dy) {
  let best = UNSEEN;
  let least = Infinity;
  for (let i = 0; i < scene.id.length; i += 1) {
    const [x, y] = from < 0 ? [scene.x[i], scene.y[i]] : [scene.x[i] - scene.x[from], scene.y[i] - scene.y[from]];
    const ahead = x * dx + y * dy;
    if (from >= 0 && (i === from || ahead <= 0)) continue;
    const far = from < 0 ? ahead : ahead + 2 * Math.abs(x * dy + y * dx);
    if (far < least) [least, best] = [far, i];
  }
  return best;
}
