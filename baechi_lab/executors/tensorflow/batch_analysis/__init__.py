"""Analysis of the forward graph: how tensors of micro-batches relate to those of the undivided batch.

A tensor that depends on the batch has an entry per sample along one axis (`Samples`), or one value for all samples
(`Total`). The undivided batch's total is the sum of the micro-batches' totals (`power` 1), their mean (0), or neither.

A loss that is divided by a total, such as the number of counted words, is not the mean of its micro-batches' losses. If that
total depends on the inputs alone and on no variable, the undivided batch's total is known before the first forward op. Each
micro-batch then divides by its share of that total (`shared_totals`), and the mean is exact. Ops that mix samples in other ways
(batch statistics, losses that compare samples) are recorded in `problems`.

There are rules for the ops that losses consist of. For other ops, an output with the length of the batch along the same axis
counts as samples, and a scalar as a total of unknown kind. O(ops + edges).

`batch_values` says what a tensor can be and is the result for a step, and `analysis` applies the rules to its ops: those of
`totals`, `samples` and `control_flow`. `op_kinds` lists the ops by what they do with samples.
"""
