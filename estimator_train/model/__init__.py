"""The Keras model that is trained: network, loss, optimizer, and its graph in an Estimator."""
