"""What the learned estimator stands on, in training and in use.

- `features` turns samples into numbers, with the `periods` of what comes in; `runs` say what is known of the switch.
- `rows` are what is learned from, and which of them judge; `parameters` is the grid; `training` grows trees in this
  process and says how good they are. On Spark the same is done by `triagemq.pipeline.train`.
- `model_files` is the folder that training and use meet in; `trees` walks what xgboost grew, without xgboost.
"""
