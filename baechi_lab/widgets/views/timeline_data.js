// Bars of the timeline view, read from its traits. Python joins this text between common.js and timeline_view.js.

const GUTTER = 132;
const AXIS = 20;
const OP_LANE = 24;
const TRANSFER_LANE = 18;
const HEADING = 18;
const LEVELS = 8;

/** @typedef {ReturnType<typeof readBars>} Bars */

/** The bars of all lanes, lane by lane: `pointer[lane]` is the first of each. @param {Model} model */
function readBars(model) {
  const c = model.get("bars");
  const bars = {
    start: column(c, "start", "f8"), end: column(c, "end", "f8"), color: column(c, "color", "u1"), op: column(c, "op", "i4"),
    label: column(c, "label", "i4"), peer: column(c, "peer", "i4"), bytes: column(c, "bytes", "f8"),
    critical: column(c, "critical", "u1"), pointer: column(c, "pointer", "i4"), longest: column(c, "longest", "f8"),
  };
  return bars;
}

/** First bar of a lane that may reach beyond `time`: bars are sorted by start, none is longer than `longest`.
 * @param {Pick<Bars, "start" | "pointer" | "longest">} bars @param {number} lane @param {number} time */
function firstVisible(bars, lane, time) {
  let low = bars.pointer[lane];
  let high = bars.pointer[lane + 1];
  const from = time - bars.longest[lane];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (bars.start[middle] < from) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Take a bar narrower than a pixel into the coverage of its column: a chosen bar hides faint ones, never the reverse.
 * @param {Float32Array} coverage @param {Int16Array} cover @param {number} pixel @param {number} width
 * @param {number} kind @param {boolean} faint */
function coverPixel(coverage, cover, pixel, width, kind, faint) {
  const wasChosen = cover[pixel] >= 0 && (cover[pixel] & 1) === 0;
  if (faint && wasChosen) return;
  if (!faint && !wasChosen) coverage[pixel] = 0;
  coverage[pixel] += Math.max(width, 0.02);
  cover[pixel] = kind * 2 + (faint ? 1 : 0);
}
