"""GPT training on one to eight A100 as measured for vTrain, predicted from 12 of the measured rows."""
