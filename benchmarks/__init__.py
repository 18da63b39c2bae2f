"""The benchmark of the CPU kernel beside its peers and beside one reading of its inputs: ``make bench``.

`cases` says what is measured, `distributions` makes the logits, `contestants` and `native` hold what is compared,
`agreement` sees that they do the same work, `measuring` runs a plan, `quiet` notices other processes, `gates` judges
the figures, `report` and `pictures` show them. How time is taken is in `ascend_sample.bench.timing`.
"""
