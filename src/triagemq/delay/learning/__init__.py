"""The learned estimator, in training and in use: samples in, features, and trees that predict delays.

- `features` turns the samples of a queue into numbers, the period of its packets among them.
- `training` holds rows to learn from, their split and the grid of parameters; `pipeline.train` grows the trees.
- `models` evaluates the trees of xgboost without xgboost, and reads and writes the folder of a model.
"""
