// Bars of the timeline view, read from its traits. Python joins this text between common.js and timeline_view.js.

const AXIS = 20;
const OP_LANE = 24;
const TRANSFER_LANE = 18;
const HEADING = 18;
const LEVELS = 8;
const FOLDED = 16; // height of the line that stands for devices without work
const MANY_LANES = 16; // devices from which lanes are lower, so that 64 can be read
const LEAST_SCALE = 0.5;
const MOST_SCALE = 3;
const PHASE_SHADES = 4; // of a device in a pipeline: its own, forward, backward, weight gradients

/** @typedef {ReturnType<typeof readBars>} Bars */

/** Upper edge, height and heading of every lane below `y`, and where the last ends. Lanes of devices without work are one line;
 * a heading of which nothing but such lanes follows is left out.
 * @param {{kind: string, heading: string, folded: boolean, fold_label: string}[]} lanes @param {boolean} fold
 * @param {number} scale of the lanes' heights, 0 for one that follows from their number @param {number} y */
function arrangeLanes(lanes, fold, scale, y) {
  const open = lanes.filter((lane) => lane.kind === "ops" && !(fold && lane.folded)).length;
  const used = Math.min(Math.max(scale || (open > MANY_LANES ? 0.6 : 1), LEAST_SCALE), MOST_SCALE);
  let pending = "";
  /** @type {string[]} */
  const headings = [];
  const tops = lanes.map((lane) => {
    const folded = fold && lane.folded;
    pending = lane.heading || pending;
    headings.push(folded && !lane.fold_label ? "" : pending);
    if (headings[headings.length - 1]) [y, pending] = [y + HEADING, ""];
    const whole = lane.kind === "ops" ? OP_LANE : TRANSFER_LANE;
    const height = folded ? (lane.fold_label ? FOLDED : 0) : Math.round(whole * used);
    const gap = folded ? (lane.fold_label ? 4 : 0) : Math.round((lane.kind === "transfers" ? 7 : 2) * Math.min(used, 1));
    y += height + gap;
    return [y - height - gap, height];
  });
  return { tops, headings, bottom: y, scale: used };
}

/** The bars of all lanes, lane by lane: `pointer[lane]` is the first of each. @param {Model} model */
function readBars(model) {
  const c = model.get("bars");
  const bars = {
    start: column(c, "start", "f8"), end: column(c, "end", "f8"), color: column(c, "color", "u1"), op: column(c, "op", "i4"),
    label: column(c, "label", "i4"), peer: column(c, "peer", "i4"), bytes: column(c, "bytes", "f8"),
    critical: column(c, "critical", "u1"), pointer: column(c, "pointer", "i4"), longest: column(c, "longest", "f8"),
    elsewhere: column(c, "elsewhere", "u1"),
  };
  return bars;
}

/** @typedef {ReturnType<typeof readWaits>} Waits */
const TRANSFER_WAIT = 0;
const QUEUE_WAIT = 1;
const OP_WAIT = 2;
const ORDER_WAIT = 3;
const NOTHING_LEFT = 4;
const COLLECTIVE_WAIT = 5; // exposed communication

/** Idle time by lane and reason, see waiting.py. @param {Model} model */
function readWaits(model) {
  const c = model.get("waits");
  return {
    pointer: column(c, "pointer", "i4"), start: column(c, "start", "f8"), end: column(c, "end", "f8"),
    kind: column(c, "kind", "u1"), op: column(c, "op", "i4"), source: column(c, "source", "i4"),
  };
}

/** The first wait of a lane that ends after `time`. @param {Waits} waits @param {number} lane @param {number} time */
function firstWait(waits, lane, time) {
  return firstPlace(waits.pointer[lane] ?? 0, waits.pointer[lane + 1] ?? 0, (wait) => waits.end[wait] <= time);
}

/** Why a device is idle, in words. @param {number} kind @param {string} source @param {string} op */
function reason(kind, source, op) {
  if (kind === NOTHING_LEFT) return "nothing left to do in this step";
  const tensor = `the tensor of ${source || "an op"}`;
  const what = [`${tensor} is under way`, `${tensor} waits in the queue of a link`, `${source || "an op"} has not ended on another device`,
    "nothing is missing: a planned order, or what the runtime does besides", "", `exposed communication: ${source || "a collective"} has not ended`][kind];
  return op ? `${what}; next here: ${op}` : what;
}

/** What the lines in idle time mean, of those that occur: mark of the line, words beside it, and what they mean.
 * @param {Iterable<number>} kinds of waits @returns {[string, string, string][]} */
function waitKeys(kinds) {
  const used = new Set(kinds);
  const moving = [used.has(TRANSFER_WAIT) ? "transfer" : "", used.has(COLLECTIVE_WAIT) ? "collective" : ""].filter(Boolean);
  const others = [used.has(OP_WAIT) ? "another device" : "", used.has(ORDER_WAIT) ? "its turn" : ""].filter(Boolean);
  /** @type {[boolean, string, string, string][]} */
  const keys = [
    [moving.length > 0, "bl-moving", `waits for a ${moving.join(" or ")}`, "idle: the tensor that the next op needs is under way, or a collective has not ended"],
    [used.has(QUEUE_WAIT), "bl-queued", "waits in the queue of a link", "idle: the tensor that the next op needs waits behind others in the queue of a link"],
    [others.length > 0, "bl-waiting", `waits for ${others.join(" or ")}`, "idle: the op whose tensor is needed next has not ended on another device, or nothing is missing: a planned order, or what a real runtime does besides"],
  ];
  return keys.filter(([occurs]) => occurs).map(([, ...key]) => key);
}

/** Colours of the bars: a class per label, or the device. On the critical path is a bar, not an op: of the transfers of a
 * critical op perhaps one. @param {Model} model @param {Bars} bars @param {string[]} colours
 * @returns {{shade: ArrayLike<number>, palette: string[], classes: boolean}} `classes`: colours do not mean devices */
function readShades(model, bars, colours) {
  const view = model.get("kinds");
  if (!view || !view.byteLength) return { ...phaseShades(model, bars, colours), classes: false };
  const kinds = new Uint8Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  const shade = model.get("color_by") === "critical path" ? bars.critical : Uint8Array.from(bars.label, (label) => kinds[label]);
  return { shade, palette: model.get("legend").map((/** @type {{color: string}} */ one) => one.color), classes: true };
}

/** The shades of devices; in a pipeline each has one per phase. @param {Model} model @param {Bars} bars @param {string[]} colours
 * @returns {{shade: ArrayLike<number>, palette: string[]}} */
function phaseShades(model, bars, colours) {
  const palette = model.get("phase_colors");
  if (!palette.length) return { shade: bars.color, palette: colours };
  const phases = column({ p: model.get("phases") }, "p", "u1");
  const shade = Uint16Array.from(bars.color, (device) => device * PHASE_SHADES);
  model.get("lanes").forEach((/** @type {{kind: string}} */ lane, /** @type {number} */ k) => {
    for (let b = bars.pointer[k]; lane.kind === "ops" && b < bars.pointer[k + 1]; b += 1) shade[b] += phases[bars.label[b]] ?? 0;
  });
  return { shade, palette };
}

/** The phase of an op in a pipeline, "" for what is done once or outside of one. @param {Model} model @param {number} label */
function phaseOf(model, label) {
  return ["", "forward", "backward", "weight gradients"][column({ p: model.get("phases") }, "p", "u1")[label] ?? 0];
}

/** Whether a bar of these shades computes gradients of weights. @param {string[]} phaseColours @param {boolean} classes @param {number} shade */
function isHatched(phaseColours, classes, shade) {
  return phaseColours.length > 0 && !classes && shade % PHASE_SHADES === PHASE_SHADES - 1;
}

/** How many bars of one kind of lane have the colour of the critical path, when that is what colours mean.
 * @param {Bars} bars @param {{kind: string}[]} lanes @param {ArrayLike<number>} shade @param {string} kind */
function criticalBars(bars, lanes, shade, kind) {
  let count = 0;
  lanes.forEach((lane, k) => {
    for (let b = bars.pointer[k]; lane.kind === kind && b < bars.pointer[k + 1]; b += 1) count += shade[b] === 1 ? 1 : 0;
  });
  return count;
}

/** The name of an op in its micro-batch's graph. @param {string} name */
function withoutBatch(name) {
  return name.replace(/\/mb\d+$/, "");
}

/** Stretches of a lane in which bars of one micro-batch follow each other: `[batch, from, to]`, in time. A gap of more than
 * `gap` ends one; bars of no micro-batch (-1) do not count, but end one as well.
 * @param {Bars} bars @param {ArrayLike<number>} batches @param {number} lane @param {number} from @param {number} to @param {number} gap */
function batchRuns(bars, batches, lane, from, to, gap) {
  /** @type {number[][]} */
  const runs = [];
  let open = false;
  for (let b = firstVisible(bars, lane, from); b < bars.pointer[lane + 1] && bars.start[b] < to; b += 1) {
    const batch = batches[bars.label[b]] ?? -1;
    const last = runs[runs.length - 1];
    if (batch < 0) {
      if (bars.end[b] > bars.start[b]) open = false;
    } else if (open && last[0] === batch && bars.start[b] - last[2] <= gap) last[2] = Math.max(last[2], bars.end[b]);
    else {
      runs.push([batch, bars.start[b], bars.end[b]]);
      open = true;
    }
  }
  return runs.filter((run) => run[2] > from);
}

/** First bar of a lane that may reach beyond `time`: bars are sorted by start, none is longer than `longest`.
 * @param {Pick<Bars, "start" | "pointer" | "longest">} bars @param {number} lane @param {number} time */
function firstVisible(bars, lane, time) {
  const from = time - bars.longest[lane];
  return firstPlace(bars.pointer[lane], bars.pointer[lane + 1], (bar) => bars.start[bar] < from);
}

/** The first `most` bars that begin or go on in `range`, as lanes and bars in order of time, and the number of all.
 * @param {Bars} bars @param {number[]} range @param {number} most @returns {{count: number, first: [number, number][]}} */
function barsWithin(bars, range, most) {
  let count = 0;
  /** @type {[number, number][]} */
  const first = [];
  for (let lane = 0; lane + 1 < bars.pointer.length; lane += 1) {
    let inLane = 0;
    for (let b = firstVisible(bars, lane, range[0]); b < bars.pointer[lane + 1] && bars.start[b] < range[1]; b += 1) {
      if (bars.end[b] < range[0]) continue;
      if (inLane < most) first.push([lane, b]);
      inLane += 1;
    }
    count += inLane;
  }
  first.sort((p, q) => bars.start[p[1]] - bars.start[q[1]]);
  return { count, first: first.slice(0, most) };
}

/** How wide a bar is drawn: a line of at most a twentieth of it parts it from the next one, so that busy devices look busy.
 * @param {number} width */
function barWidth(width) {
  return Math.max(width - Math.min(0.7, 0.05 * width), 0.7);
}

const LEAST_PART = 0.1; // of a column: a smaller part of a bar would be drawn too strongly there

/** Take a bar narrower than two pixels into the coverage of all columns in which it lies: with the first one alone, bars that
 * follow each other seem to have gaps.
 * @param {Float32Array} coverage @param {Int16Array} cover @param {number} x its left end @param {number} width
 * @param {number} kind @param {boolean} faint @returns {number} the column of its left end */
function coverBar(coverage, cover, x, width, kind, faint) {
  const left = Math.min(Math.max(x, 0), coverage.length - 1);
  const first = Math.floor(left);
  for (let pixel = first; pixel === first || pixel < Math.min(left + width, coverage.length); pixel += 1) {
    const part = Math.min(left + width, pixel + 1) - Math.max(left, pixel);
    if (part >= Math.min(width / 2, LEAST_PART)) coverPixel(coverage, cover, pixel, part, kind, faint);
  }
  return first;
}

/** Take a part of a bar into the coverage of its column: a chosen bar hides faint ones, never the reverse.
 * @param {Float32Array} coverage @param {Int16Array} cover @param {number} pixel @param {number} width
 * @param {number} kind @param {boolean} faint */
function coverPixel(coverage, cover, pixel, width, kind, faint) {
  const wasChosen = cover[pixel] >= 0 && (cover[pixel] & 1) === 0;
  if (faint && wasChosen) return;
  if (!faint && !wasChosen) coverage[pixel] = 0;
  coverage[pixel] += Math.max(width, 0.02);
  cover[pixel] = kind * 2 + (faint ? 1 : 0);
}
