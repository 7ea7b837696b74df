// The keys of a splitter: 16 pixels per arrow, within its limits.

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.js";

const { sizeAfterKey } = load(["common.js", "splitter.js"], ["sizeAfterKey"]);

test("arrows make the part larger or smaller, whichever side it is on", () => {
  assert.equal(sizeAfterKey("ArrowRight", 300, [220, 560], true, 1), 316);
  assert.equal(sizeAfterKey("ArrowRight", 300, [140, 640], true, -1), 284);
  assert.equal(sizeAfterKey("ArrowUp", 300, [220, 1600], false, 1), 284);
});

test("limits hold, and other keys are left alone", () => {
  assert.equal(sizeAfterKey("ArrowLeft", 225, [220, 560], true, 1), 220);
  assert.deepEqual(["Home", "End"].map((key) => sizeAfterKey(key, 300, [220, 560], true, 1)), [220, 560]);
  assert.deepEqual(["ArrowUp", "a"].map((key) => sizeAfterKey(key, 300, [220, 560], true, 1)), [undefined, undefined]);
});
