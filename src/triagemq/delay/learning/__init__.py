"""What the learned estimator stands on. Training is elsewhere (`pipeline`), and uses the same features.

`features` turns samples into numbers, with the `periods` of what comes in and the `constants` of the switch; `trees`
walks the trees that xgboost grew, without xgboost; `model_files` is the folder that training and use meet in.
"""
