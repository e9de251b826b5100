"""One program for each way to simulate a federated round; `benchmarks.simulation.against_peers` times them.

`bert_logits` is what tests hold BERT to, and needs the same environment.
"""
