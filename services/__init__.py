"""kvroute: the stages of the pipeline, one package a stage. Data walks one way through them."""
