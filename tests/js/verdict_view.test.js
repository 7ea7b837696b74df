// Words of the verdict's bar stand clear of the tick of the lower bound.

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.js";

const { wordShift } = load(["common.js", "verdict_view.js"], ["wordShift"]);

test("a word stays in the middle unless the tick crosses it, and then stands on the wider side", () => {
  assert.equal(wordShift(400, 60, 100), 0); // the word is from 170 to 230
  assert.equal(wordShift(400, 60, 500), 0); // in another piece
  assert.equal(wordShift(400, 60, 210), -25); // its middle at 175: to 205, 5 before the tick
  assert.equal(wordShift(400, 60, 190), 25); // its middle at 225: from 195 on
  assert.equal(wordShift(80, 60, 40), null); // no side has 68 pixels
});
