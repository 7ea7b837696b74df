import assert from "node:assert/strict";
import { test } from "node:test";

import { bytes, load, model } from "./load.js";

const { readBars, firstVisible, barsWithin, barWidth, coverBar, coverPixel, readWaits, firstWait, reason, readShades, batchRuns, criticalBars, arrangeLanes, isHatched, phaseOf, waitKeys } = load(
  ["common.js", "timeline_data.js"],
  ["readBars", "firstVisible", "barsWithin", "barWidth", "coverBar", "coverPixel", "readWaits", "firstWait", "reason", "readShades", "batchRuns", "criticalBars", "arrangeLanes", "isHatched",
    "phaseOf", "waitKeys"],
);

// Lane 0 has bars 0-4, 5-6, 9-12, lane 1 none, lane 2 one bar 3-10.
const bars = readBars(model({
  bars: { start: bytes("f8", [0, 5, 9, 3]), end: bytes("f8", [4, 6, 12, 10]), pointer: bytes("i4", [0, 3, 3, 4]),
    longest: bytes("f8", [4, 0, 7]) },
}));

test("bars are columns, and those that were not sent are empty", () => {
  assert.deepEqual([...bars.start], [0, 5, 9, 3]);
  assert.deepEqual([...bars.pointer], [0, 3, 3, 4]);
  assert.equal(bars.label.length, 0);
});

test("the first visible bar is the first that may reach beyond the time", () => {
  assert.equal(firstVisible(bars, 0, 0), 0);
  assert.equal(firstVisible(bars, 0, 4), 0); // 4 - 4 = 0: bar 0 starts then
  assert.equal(firstVisible(bars, 0, 4.5), 1);
  assert.equal(firstVisible(bars, 0, 100), 3); // beyond the lane's last
  assert.equal(firstVisible(bars, 1, 0), 3); // an empty lane
  assert.equal(firstVisible(bars, 2, 10), 3);
});

test("no bar that is seen is left out", () => {
  for (let time = 0; time < 14; time += 0.5) {
    const first = firstVisible(bars, 0, time);
    for (let i = bars.pointer[0]; i < bars.pointer[1]; i += 1) if (bars.end[i] > time) assert.ok(i >= first);
  }
});

test("a chosen bar is seen among faint ones in one pixel, in whatever order they come", () => {
  for (const order of [[true, false, true], [false, true, true], [true, true, false]]) {
    const coverage = new Float32Array(1);
    const cover = new Int16Array([-1]);
    for (const faint of order) coverPixel(coverage, cover, 0, 0.25, faint ? 5 : 3, faint);
    assert.deepEqual([cover[0], coverage[0]], [3 * 2, 0.25]);
  }
});

test("a table has the first bars of all lanes, and the number of all", () => {
  // 500 of each lane were counted, and those of the first lane came first.
  assert.deepEqual(barsWithin(bars, [0, 20], 2), { count: 4, first: [[0, 0], [2, 3]] });
  assert.deepEqual(barsWithin(bars, [4.5, 9.5], 9), { count: 3, first: [[2, 3], [0, 1], [0, 2]] });
});

test("the line between two bars is a small share of narrow ones", () => {
  assert.deepEqual([0.2, 5, 40].map(barWidth), [0.7, 4.75, 39.3]);
});

test("bars that follow each other without idle time cover every column", () => {
  const coverage = new Float32Array(12);
  const cover = new Int16Array(12).fill(-1);
  for (let x = 0.75; x < 10; x += 1.375) coverBar(coverage, cover, x, 1.375, 0, false); // seven bars, up to 10.375
  assert.deepEqual([...coverage], [0.25, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0.375, 0]);
  assert.equal(coverBar(coverage, cover, -3, 1.4, 0, false), 0); // one that began before the edge
  assert.equal(coverBar(coverage, cover, 11.5, 1.4, 0, false), 11);
  const narrow = new Float32Array(3);
  coverBar(narrow, new Int16Array(3).fill(-1), 0.99, 0.06, 0, false); // one column, not two
  assert.deepEqual([...narrow].map((share) => share > 0).filter(Boolean).length, 1);
});

test("the wait at a time is found, in its lane only", () => {
  const waits = readWaits(model({ waits: {
    pointer: bytes("i4", [0, 2, 2, 3]), start: bytes("f8", [4, 6, 0]), end: bytes("f8", [5, 9, 3]), kind: bytes("u1", [2, 0, 4]),
    op: bytes("i4", [1, 2, -1]), source: bytes("i4", [0, 0, -1]),
  } }));
  assert.deepEqual([0, 4.5, 5, 8.9, 9].map((time) => firstWait(waits, 0, time)), [0, 0, 1, 1, 2]);
  assert.deepEqual([firstWait(waits, 1, 0), firstWait(waits, 2, 1), firstWait(waits, 2, 3)], [2, 2, 3]);
});

test("reasons of idle time are words", () => {
  assert.equal(reason(0, "a", "b"), "the tensor of a is under way; next here: b");
  assert.equal(reason(2, "a", "b"), "a has not ended on another device; next here: b");
  assert.equal(reason(4, "", ""), "nothing left to do in this step");
  assert.equal(reason(5, "reduce", "b"), "exposed communication: reduce has not ended; next here: b");
});

test("bars have the colour of their class, or of their device where there are none", () => {
  const own = readBars(model({ bars: { color: bytes("u1", [0, 1, 1]), label: bytes("i4", [2, 0, 1]) } }));
  const devices = readShades(model({ kinds: new DataView(new ArrayBuffer(0)), phase_colors: [] }), own, ["blue", "orange"]);
  assert.deepEqual([[...devices.shade], devices.palette], [[0, 1, 1], ["blue", "orange"]]);
  const classes = readShades(model({ kinds: bytes("u1", [1, 0, 2]), legend: [{ color: "x" }, { color: "y" }, { color: "z" }] }), own, []);
  assert.deepEqual([[...classes.shade], classes.palette], [[2, 1, 0], ["x", "y", "z"]]);
});

test("of a critical op's transfers just the critical one has the colour of the path", () => {
  // Op 0 is critical; of its two sends (lane 1) the second is what the next critical op waited for.
  const own = readBars(model({ bars: {
    start: bytes("f8", [0, 4, 4]), pointer: bytes("i4", [0, 1, 3]), label: bytes("i4", [0, 0, 0]), critical: bytes("u1", [1, 0, 1]),
  } }));
  const legend = [{ color: "grey" }, { color: "red" }];
  const by = (name) => readShades(model({ kinds: bytes("u1", [1]), legend, color_by: name }), own, []).shade;
  assert.deepEqual([...by("critical path")], [1, 0, 1]);
  assert.deepEqual([...by("op type")], [1, 1, 1]); // elsewhere a transfer has the colour of its producer
  const lanes = [{ kind: "ops" }, { kind: "transfers" }];
  assert.deepEqual(["ops", "transfers"].map((kind) => criticalBars(own, lanes, by("critical path"), kind)), [1, 1]);
});

test("bars of one micro-batch that follow each other are one stretch", () => {
  // Of lane 0: label 0 is of micro-batch 0, 1 and 2 of 1; bars 0-4, 5-6, 9-12.
  const own = readBars(model({ bars: {
    start: bytes("f8", [0, 5, 9]), end: bytes("f8", [4, 6, 12]), pointer: bytes("i4", [0, 3]), longest: bytes("f8", [4]), label: bytes("i4", [0, 1, 2]),
  } }));
  assert.deepEqual(batchRuns(own, [0, 1, 1], 0, 0, 20, 3), [[0, 0, 4], [1, 5, 12]]);
  assert.deepEqual(batchRuns(own, [0, 1, 1], 0, 0, 20, 2), [[0, 0, 4], [1, 5, 6], [1, 9, 12]]); // a gap of 3
  assert.deepEqual(batchRuns(own, [1, -1, 1], 0, 0, 20, 9), [[1, 0, 4], [1, 9, 12]]); // something else between
  assert.deepEqual(batchRuns(own, [0, 1, 1], 0, 7, 20, 2), [[1, 9, 12]]); // what is seen only
});

const lanePair = (folded, fold_label, heading = "") => [
  { kind: "ops", heading, folded, fold_label }, { kind: "transfers", heading: "", folded, fold_label: "" },
];

test("devices without work are one line, and each while they are not folded", () => {
  const lanes = [...lanePair(false, "", "Simulated"), ...lanePair(true, "gpu:1 to gpu:2 idle"), ...lanePair(true, "")];
  const folded = arrangeLanes(lanes, true, 0, 10);
  assert.deepEqual(folded.tops.map(([, height]) => height), [24, 18, 16, 0, 0, 0]);
  assert.deepEqual(folded.tops[0], [28, 24]); // below the heading of 18
  assert.equal(folded.bottom, 28 + 24 + 2 + 18 + 7 + 16 + 4);
  assert.deepEqual(arrangeLanes(lanes, false, 0, 10).tops.map(([, height]) => height), [24, 18, 24, 18, 24, 18]);
});

test("a machine whose devices are all folded has no heading, and one that works has it above its first lane", () => {
  const lanes = [
    ...lanePair(false, "", "machine 1"), ...lanePair(true, "gpu:1 to gpu:5 idle"), ...lanePair(true, "", "machine 2"), ...lanePair(true, ""),
    ...lanePair(true, "", "machine 3"), ...lanePair(true, ""), ...lanePair(false, ""),
  ];
  const { headings, tops, bottom } = arrangeLanes(lanes, true, 0, 0);
  assert.deepEqual(headings.map((text, k) => [k, text]).filter(([, text]) => text), [[0, "machine 1"], [12, "machine 3"]]);
  assert.equal(tops[12][0], 18 + 24 + 2 + 18 + 7 + 16 + 4 + 18);
  assert.equal(bottom, tops[12][0] + 24 + 2 + 18 + 7);
  const open = arrangeLanes(lanes, false, 0, 0).headings;
  assert.deepEqual(open.filter(Boolean), ["machine 1", "machine 2", "machine 3"]);
});

test("many lanes are lower, and a chosen scale holds within its limits", () => {
  const many = Array.from({ length: 64 }, () => lanePair(false, "")).flat();
  const heights = (scale) => arrangeLanes(many, true, scale, 0).tops.slice(0, 2).map(([, height]) => height);
  assert.deepEqual(heights(0), [14, 11]);
  assert.deepEqual(heights(2), [48, 36]);
  assert.deepEqual(heights(100), [72, 54]);
});

test("a pipeline has four shades per device: its own, forward, backward and weight gradients; transfers have their device's", () => {
  // Lane 0: ops 0 to 3 of device 1, in the phases 1, 2, 3 and none. Lane 1: one transfer to device 0.
  const columns = { pointer: bytes("i4", [0, 4, 5]), color: bytes("u1", [1, 1, 1, 1, 0]), label: bytes("i4", [0, 1, 2, 3, 0]) };
  const given = model({
    bars: columns, lanes: [{ kind: "ops" }, { kind: "transfers" }], phases: bytes("u1", [1, 2, 3, 0]),
    phase_colors: ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"], color_by: "device",
  });
  const { shade, palette, classes } = readShades(given, readBars(given), ["a0", "b0"]);
  assert.deepEqual(Array.from(shade, (k) => palette[k]), ["b1", "b2", "b3", "b0", "a0"]);
  assert.deepEqual(Array.from(shade, (k) => isHatched(palette, classes, k)), [false, false, true, false, false]);
  assert.deepEqual([0, 1, 2, 3, 9].map((label) => phaseOf(given, label)), ["forward", "backward", "weight gradients", "", ""]);
});

test("every kind of line in idle time has words beside it, a dashed one too", () => {
  const [transfer, queue, op, order, nothing, collective] = [0, 1, 2, 3, 4, 5];
  const words = (kinds) => waitKeys(kinds).map(([mark, text]) => `${mark}: ${text}`);
  assert.deepEqual(words([nothing]), []);
  assert.deepEqual(words([queue, queue]), ["bl-queued: waits in the queue of a link"]);
  assert.deepEqual(words([op, collective, transfer]), ["bl-moving: waits for a transfer or collective", "bl-waiting: waits for another device"]);
  assert.deepEqual(words([order]), ["bl-waiting: waits for its turn"]);
  assert.deepEqual(words([order, op]), ["bl-waiting: waits for another device or its turn"]); // one kind of line
});
