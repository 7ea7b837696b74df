// Words of the verdict's bar stand clear of the tick of the lower bound.

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.js";

const { labelPlaces, placesBeside, wordShift } = load(["common.js", "verdict_view.js"], ["labelPlaces", "placesBeside", "wordShift"]);

test("a word stays in the middle unless the tick crosses it, and then stands on the wider side", () => {
  assert.equal(wordShift(400, 60, 100), 0); // the word is from 170 to 230
  assert.equal(wordShift(400, 60, 500), 0); // in another piece
  assert.equal(wordShift(400, 60, 210), -25); // its middle at 175: to 205, 5 before the tick
  assert.equal(wordShift(400, 60, 190), 25); // its middle at 225: from 195 on
  assert.equal(wordShift(80, 60, 40), null); // no side has 68 pixels
});

test("labels below the bar stand at their places, apart from each other and within the bar", () => {
  const label = (at, wide, share) => ({ at, wide, share });
  assert.deepEqual(labelPlaces([label(100, 40, 0.1), label(300, 60, 0.1)], 0, 400), [80, 270]);
  assert.deepEqual(labelPlaces([label(5, 40, 0.1), label(20, 40, 0.1)], 0, 400), [0, 50]); // pushed to the right
  assert.deepEqual(labelPlaces([label(380, 40, 0.1), label(395, 40, 0.1)], 0, 400), [310, 360]); // and back into the bar
  assert.deepEqual(labelPlaces([], 0, 400), []);
});

test("where there is no room for all labels, those of the smallest parts have none", () => {
  const labels = [{ at: 10, wide: 50, share: 0.01 }, { at: 60, wide: 50, share: 0.05 }, { at: 90, wide: 40, share: Infinity }];
  assert.deepEqual(labelPlaces(labels, 0, 100), [null, 0, 60]); // 50 + 10 + 40 fill it
  assert.deepEqual(labelPlaces(labels, 0, 99), [null, null, 59]);
});

test("labels stand on their side of the tick's text, which stays at the tick", () => {
  const label = (at, wide, share = 0.1) => ({ at, wide, share });
  assert.deepEqual(placesBeside([label(100, 40), label(300, 60)], 400, 150, 250), [80, 270]); // both are clear of it
  assert.deepEqual(placesBeside([label(140, 40), label(255, 60)], 400, 150, 250), [100, 260]); // to 150 - 10, from 250 + 10 on
  assert.deepEqual(placesBeside([label(20, 40), label(160, 40)], 400, 30, 170), [180, 230]); // no room before it
  assert.deepEqual(placesBeside([label(390, 40), label(395, 40)], 400, 290, 380), [190, 240]); // nor behind it
  assert.deepEqual(placesBeside([label(20, 40)], 100, 20, 90), [null]); // nor anywhere
  assert.deepEqual(placesBeside([label(380, 30)], 400, 250, 390), [210]); // in the text, and more room before it
});
