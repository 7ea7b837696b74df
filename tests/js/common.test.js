import assert from "node:assert/strict";
import { test } from "node:test";

import { bytes, lines, load } from "./load.js";

const { column, texts, formatTime, formatTimeBeside, formatBytes, formatBytesBeside, withoutEndingZeros, formatLimit, formatShare, opsInWords, shortened, standsLeft, besideMark, textOn, ticks, tickLabels, zoomedWindow, listen } = load(["common.js"],
  ["column", "texts", "formatTime", "formatTimeBeside", "formatBytes", "formatBytesBeside", "withoutEndingZeros", "formatLimit", "formatShare", "opsInWords", "shortened", "standsLeft", "besideMark", "textOn", "ticks", "tickLabels", "zoomedWindow", "listen"]);

test("a column is read wherever its bytes begin, and a missing one is empty", () => {
  assert.deepEqual([...column({ a: bytes("f8", [1.5, -2]) }, "a", "f8")], [1.5, -2]);
  assert.deepEqual([...column({ a: bytes("i4", [7]) }, "a", "i4")], [7]);
  assert.equal(column({}, "a", "f8").length, 0);
});

test("texts are lines, and no bytes are no texts", () => {
  assert.deepEqual(texts(lines("a", "", "ü")), ["a", "", "ü"]);
  assert.deepEqual(texts(lines("")), []);
  assert.deepEqual(texts(undefined), []);
});

test("times and bytes have the unit that keeps them short", () => {
  assert.deepEqual([999, 1000, 2.5e6, -1500].map(formatTime), ["999.00 us", "1.00 ms", "2.50 s", "-1.50 ms"]);
  assert.deepEqual([0, 0.25, 0.004, 1e-9].map(formatTime), ["0 us", "0.25 us", "4.00 ns", "0 us"]);
  assert.equal(formatTime(NaN), "?");
  assert.deepEqual([0, 999, 1000, 5e15].map(formatBytes), ["0 B", "999 B", "1.00 kB", "5000.00 TB"]);
});

test("bytes that stand beside each other have the unit of the largest", () => {
  const beside = (largest, ...values) => values.map((value) => formatBytesBeside(value, largest));
  assert.deepEqual(beside(1.73e9, 1.73e9, 391.79e6, 4e6, 123456, 0), ["1.73 GB", "0.39 GB", "0.004 GB", "0.0001 GB", "0 GB"]);
  assert.deepEqual(beside(999, 999, 5), ["999 B", "5 B"]);
  assert.deepEqual(beside(2.5e6, 4), ["4 B"]); // 0.000004 MB says less
});

test("the marks of a scale of bytes end without zeros, as those of charts do", () => {
  const sizes = ["0.50 GB", "1.00 GB", "10.00 MB", "0.25 GB", "1.05 kB", "100 B"];
  assert.deepEqual(sizes.map(withoutEndingZeros), ["0.5 GB", "1 GB", "10 MB", "0.25 GB", "1.05 kB", "100 B"]);
});

test("times that stand beside each other have the unit of the longest", () => {
  const beside = (longest, ...values) => values.map((value) => formatTimeBeside(value, longest));
  assert.deepEqual(beside(241290, 241290, 20.92, 0), ["241.29 ms", "0.0209 ms", "0 us"]);
  assert.deepEqual(beside(241290, 0.25), ["0.25 us"]); // 0.00025 ms is less than a thousandth
});

test("a limit in whole GiB is told in both units, since peaks are in GB", () => {
  assert.deepEqual([2 ** 33, 8e9, 3 * 2 ** 20, 0].map(formatLimit), ["8.59 GB = 8 GiB", "8.00 GB", "3.15 MB = 3 MiB", "0 B"]);
});

test("only what is all idle is 100% idle", () => {
  assert.deepEqual([0, 0.25, 0.9996, 1].map(formatShare), ["0%", "25%", "99.9%", "100%"]);
  assert.deepEqual([1e-5, 0.004, 0.9951, 1 - 1e-12].map(formatShare), ["0.1%", "0.4%", "99.5%", "100%"]);
});

test("one op is singular, and thousands have commas", () => {
  assert.deepEqual([0, 1, 22856].map(opsInWords), ["0 ops", "1 op", "22,856 ops"]);
});

test("a text is shortened to the pixels there are", () => {
  // 0.56 x 10 = 5.6 pixels per character: 57 pixels hold 10 characters, 16 pixels only 2, which say nothing.
  assert.equal(shortened("0123456789", 57, 10), "0123456789");
  assert.equal(shortened("0123456789a", 57, 10), "012345678…");
  assert.equal(shortened("0123456789a", 16, 10), "");
});

test("names that differ in their last number alone differ when they are shortened, too", () => {
  const to = (/** @type {number} */ count, /** @type {string[]} */ ...names) => names.map((name) => shortened(name, 5.6 * count + 1, 10));
  assert.deepEqual(to(7, "part 1 of 12", "part 12 of 12"), ["part 1", "part 12"]);
  assert.deepEqual(to(4, "part 1 of 12", "part 12 of 12"), ["pa…1", "p…12"]);
  assert.deepEqual(to(5, "linear1", "linear2", "dropout", "add#1"), ["lin…1", "lin…2", "drop…", "add#1"]);
  assert.deepEqual(to(6, "layers.10", "layers.0 to layers.3", "layers.4 to layers.11"), ["lay…10", "la…0–3", "l…4–11"]);
  assert.deepEqual(to(2, "layers.10", "gpu:3", "block 7 of 9", "norm1"), ["10", "3", "7", ""]); // a number that ends a word is no name
  assert.deepEqual(to(4, "122.86", "1234567"), ["122…", "123…"]); // of a number the first digits count
});

test("a text that would go over the right edge stands at the left, where there is more room", () => {
  assert.equal(standsLeft(700, 260, 132, 992), false); // ends at 960
  assert.equal(standsLeft(780, 260, 132, 992), true); // would end at 1040
  assert.equal(standsLeft(150, 260, 132, 300), false); // 150 pixels at the right, 18 at the left
  assert.deepEqual(besideMark(700, 260, 132, 992), [false, 707]);
  assert.deepEqual(besideMark(780, 260, 132, 992), [true, 773]);
  assert.deepEqual(besideMark(140, 100, 180, 992), [false, 180]); // beside a mark at the left edge was the label of a tick
});

test("text is black on light colours and white on dark ones", () => {
  assert.deepEqual(["#ffffff", "#F0E442", "#0072B2", "#000000"].map(textOn), ["#000000", "#000000", "#ffffff", "#ffffff"]);
});

test("labels of ticks have one unit and no more digits than tell them apart", () => {
  assert.deepEqual(tickLabels([0, 200e3, 400e3]), ["0 ms", "200 ms", "400 ms"]); // not 200.00 ms
  assert.deepEqual(tickLabels([0, 5e5, 1e6]), ["0.0 s", "0.5 s", "1.0 s"]);
  assert.deepEqual(tickLabels([1000, 1000.5]), ["1.0000 ms", "1.0005 ms"]); // zoomed in: half a microsecond
  assert.deepEqual(tickLabels([0]), ["0 ns"]);
  assert.deepEqual(tickLabels([]), []);
});

test("ticks are multiples of 1, 2 or 5 times a power of ten, within the window", () => {
  assert.deepEqual(ticks(0, 10, 5), [0, 2, 4, 6, 8, 10]); // 10 / 5 = 2
  assert.deepEqual(ticks(3, 47, 4), [20, 40]); // 44 / 4 = 11 -> 20
  assert.deepEqual(ticks(5, 5, 3), [5]);
  assert.deepEqual(ticks(0, 1e-9, 10), []); // no timeline
});

test("a window is zoomed about a point and stays inside", () => {
  assert.deepEqual(zoomedWindow([0, 100], 100, 50, 0.5), [25, 75]);
  assert.deepEqual(zoomedWindow([0, 50], 100, 0, 4), [0, 100]); // never wider than the whole
  assert.deepEqual(zoomedWindow([80, 100], 100, 100, 2), [60, 100]);
});

test("listening ends when asked to", () => {
  const on = [];
  const off = [];
  const stop = listen({ on: (name) => on.push(name), off: (name) => off.push(name) }, { bars: () => {}, dim: () => {} });
  assert.deepEqual([on, off], [["change:bars", "change:dim"], []]);
  stop();
  assert.deepEqual(off, on);
});

/** A widget's model as a widget manager keeps it: `late` as anywidget leaves it where the two seconds were over. */
function managed(late) {
  const calls = [];
  class Base { _handle_comm_msg(message) { calls.push([this, message]); return Promise.resolve(); } }
  class Any extends Base { _handle_comm_msg(message) { return late ? Promise.reject(new Error("Failed to initialize model.")) : super._handle_comm_msg(message); } }
  const whole = new Any();
  whole.callbacks = () => "callbacks";
  whole.comm = { sent: [], on_msg(handle) { this.handle = handle; }, send(...given) { this.sent.push(given); } };
  return { calls, whole, model: { on() {}, off() {}, get: () => "id", widget_manager: { get_model: async (id) => (id === "id" ? whole : undefined) } } };
}

test("a widget that started late listens to the kernel and asks for what it missed", async () => {
  const { calls, whole, model } = managed(true);
  listen(model, {});
  await new Promise((resolve) => setTimeout(resolve, 5));
  assert.deepEqual(whole.comm.sent, [[{ method: "request_state" }, "callbacks"]]);
  whole.comm.handle("an update");
  assert.deepEqual(calls, [[whole, "an update"]]);
});

test("a widget that started in time is left alone, and so is one without a manager or a kernel", async () => {
  const { whole, model } = managed(false);
  listen(model, {});
  const closed = managed(true);
  delete closed.whole.comm;
  listen(closed.model, {});
  listen({ on() {}, off() {}, get: () => "other" }, {});
  await new Promise((resolve) => setTimeout(resolve, 5));
  assert.deepEqual(whole.comm.sent, []);
  assert.equal(whole.comm.handle, undefined);
});
