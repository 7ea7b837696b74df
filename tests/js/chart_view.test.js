import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "./load.js";

const names = ["countPlace", "firstInPlace", "ringRadii", "spotsAt", "ticks", "upperEnd"];
const { countPlace, firstInPlace, ringRadii, spotsAt, ticks, upperEnd } = load(["common.js", "time_axis.js", "chart_view.js"], names);

/** Two marks in one place, and one 7 pixels below, whose area of 9 pixels covers theirs. */
const spots = [{ x: 50, y: 50, id: 0, text: "a" }, { x: 50.2, y: 50, id: 1, text: "b" }, { x: 50, y: 57, id: 2, text: "c" }];
const idsAt = (x, y) => spotsAt(spots, x, y).map((spot) => spot.id);

test("a click means the nearest mark, however areas cover each other", () => {
  assert.deepEqual(idsAt(50, 57), [2]);
  assert.deepEqual(idsAt(50, 55), [2]);
});

test("marks in one place are meant together", () => {
  assert.deepEqual(idsAt(50, 50), [0, 1]);
  assert.deepEqual(idsAt(48, 45), [0, 1]);
});

test("an axis of zeros, or of nothing, has ticks", () => {
  const chart = (y) => ({ series: [{ y }], rules: [{ y: 0 }] });
  for (const y of [[0, 0], [null, NaN], []]) assert.ok(ticks(0, upperEnd(chart(y)), 3).length > 1, String(y));
  assert.equal(upperEnd(chart([2, 4])), 4 * 1.06);
});

test("marks in one place are a ring for each colour, and the mark beside them is not", () => {
  const mark = (stroke, x = 5) => ({ x, y: 5, stroke, open: false });
  const marks = [mark("a"), mark("a"), mark("b"), mark("b", 90), mark("c"), mark("c")];
  assert.deepEqual(ringRadii(marks, 5.5), [11.5, 11.5, 8.5, 5.5, 5.5, 5.5]);
  assert.deepEqual(ringRadii([..."abcdef"].map((colour) => mark(colour)), 5.5), [14.5, 14.5, 14.5, 11.5, 8.5, 5.5]);
});

test("every mark counts in one place, also where each covers the next", () => {
  const marks = [0, 4, 8, 12, 30].map((x) => ({ x, y: 5 }));
  assert.deepEqual(firstInPlace(marks), [0, 0, 2, 2, 4]); // 8 is farther than 5.5 from 0, 12 is not from 8
});

test("the number of marks in one place covers no other mark and no other number, and stands in the plot", () => {
  const plot = { left: 0, top: 0, right: 400, bottom: 200 };
  const place = (others, change = {}, counts = []) => {
    const circles = [{ x: 50, y: 50, radius: 8 }, ...others.map((other) => ({ ...other, radius: 5 }))];
    const { x, y } = countPlace(circles[0], circles, counts, 20, { ...plot, ...change });
    return [x, y];
  };
  assert.deepEqual(place([]), [59, 40]); // from 50 + 8 + 1, above at 50 - 8 - 2
  assert.deepEqual(place([{ x: 70, y: 40 }]), [21, 40]); // at the left: from 50 - 8 - 1 - 20
  assert.deepEqual(place([{ x: 70, y: 40 }, { x: 30, y: 40 }]), [59, 60]); // below
  assert.deepEqual(place([], { top: 38 }), [59, 60]); // above it would begin at 35
  assert.deepEqual(place([], { right: 70 }), [21, 40]); // the right one would end at 79
  assert.deepEqual(place([], {}, [{ x: 60, y: 45, wide: 20 }]), [21, 40]); // beside another number
  // Where all places beside it are taken, it stands farther away (50 + 8 + 16, 50 - 8 - 1 - 16), and it is never left out.
  assert.deepEqual(place([{ x: 70, y: 40 }, { x: 30, y: 40 }, { x: 70, y: 60 }, { x: 30, y: 60 }]), [74, 25]);
  assert.deepEqual(place([], { right: 60, left: 40 }), [59, 40]);
});
