"""Models of users, whose .h5 files several libraries load; and models that Keras 3 cannot load."""

import tensorflow.compat.v1 as tf
from load_h5_files import make_own_layer

layers = tf.keras.layers
IMAGE, SEQUENCE, NUM_CLASSES = (9, 10, 3), (6, 4), 3


def image_layers():
  regularizer = tf.keras.regularizers.l2(.01)
  return tf.keras.Sequential([
      layers.Conv2D(6, 3, activation='elu', kernel_regularizer=regularizer, input_shape=IMAGE),
      layers.BatchNormalization(), layers.PReLU(shared_axes=[1, 2]),
      layers.ZeroPadding2D(((1, 0), (0, 1))),
      layers.SeparableConv2D(6, 3, padding='same', depthwise_initializer='he_uniform'),
      layers.BatchNormalization(axis=2), layers.LeakyReLU(.2),
      layers.DepthwiseConv2D(3, depth_multiplier=2, dilation_rate=2, padding='same'),
      layers.LayerNormalization(), layers.SpatialDropout2D(0.),
      layers.UpSampling2D(interpolation='bilinear'), layers.AveragePooling2D(),
      layers.Conv2DTranspose(4, 3, strides=2, kernel_initializer='orthogonal'),
      layers.ReLU(6., negative_slope=.1), layers.MaxPooling2D(padding='same'),
      layers.TimeDistributed(layers.Conv1D(4, 3)), layers.TimeDistributed(
          tf.keras.Sequential([layers.Dense(5), layers.LayerNormalization()])),
      layers.Permute((3, 1, 2)), layers.Flatten(), layers.Dense(NUM_CLASSES)])


def sequence_layers():
  return tf.keras.Sequential([
      layers.Masking(input_shape=SEQUENCE),
      layers.Bidirectional(layers.GRU(4, recurrent_activation='sigmoid', return_sequences=True)),
      layers.Bidirectional(layers.LSTM(3, recurrent_activation='sigmoid', return_sequences=True),
                           merge_mode='sum'),
      layers.RNN([layers.LSTMCell(4, recurrent_activation='sigmoid'), layers.SimpleRNNCell(3)],
                 return_sequences=True, go_backwards=True),
      layers.SimpleRNN(4), layers.Dense(NUM_CLASSES)])


def own_layer_in_sequence():
  scale = make_own_layer(tf.keras)
  return tf.keras.Sequential([
      scale(.5, tf.keras.initializers.RandomNormal(stddev=.1), input_shape=SEQUENCE),
      layers.GlobalAveragePooling1D(), layers.Dense(4, 'softplus'), scale(2.),
      layers.Dense(NUM_CLASSES)])


def attention():
  inputs = tf.keras.Input(SEQUENCE)
  keys = layers.Conv1D(4, 2, padding='causal', name='block/keys')(inputs)
  found = [layers.Attention(use_scale=True)([inputs, keys]),
           layers.AdditiveAttention()([inputs, keys])]
  hidden = layers.GlobalMaxPooling1D()(layers.add(found))
  return tf.keras.Model(inputs, layers.Dense(NUM_CLASSES)(hidden))


def two_inputs():
  numbers = tf.keras.Input((4,), name='numbers')
  words = tf.keras.Input((None,), dtype='int32', name='ids')
  embedded = layers.Embedding(11, 4, mask_zero=True)(words)
  summary = layers.LSTM(4, recurrent_activation='sigmoid')(embedded)
  shared = layers.Dense(4, 'tanh')
  merged = layers.concatenate([shared(numbers), shared(summary), layers.Dot(1)([numbers, summary])])
  return tf.keras.Model([numbers, words], [layers.Dense(NUM_CLASSES, name='price')(merged),
                                           layers.Dense(NUM_CLASSES, name='kind')(merged)])


def word_embedding():
  return tf.keras.Sequential([
      layers.Embedding(11, 4, input_length=5), layers.GlobalAveragePooling1D(),
      layers.Dense(NUM_CLASSES)])


def _backbone(is_frozen=False):
  inputs = tf.keras.Input(IMAGE)
  convolution = layers.Conv2D(4, 3, trainable=not is_frozen)
  hidden = layers.BatchNormalization(momentum=.9)(convolution(inputs))
  return tf.keras.Model(inputs, layers.GlobalAveragePooling2D()(hidden))


def scaled_sum():
  """Has the Lambda layer of InceptionResNetV2."""
  inputs = tf.keras.Input(SEQUENCE)
  hidden = layers.Lambda(lambda inputs, scale: inputs[0] + inputs[1] * scale,
                         output_shape=SEQUENCE, arguments={'scale': .17}, name='block')(
                             [inputs, layers.Conv1D(4, 1)(inputs)])
  return tf.keras.Model(inputs, layers.Dense(NUM_CLASSES)(layers.Flatten()(hidden)))


def model_as_layer():
  inputs = tf.keras.Input(IMAGE)
  top = tf.keras.Sequential([layers.Dense(4, 'relu', input_shape=(4,)), layers.Dense(4)])
  return tf.keras.Model(inputs, layers.Dense(NUM_CLASSES)(top(_backbone(True)(inputs))))


def model_called_twice():
  images = [tf.keras.Input(IMAGE), tf.keras.Input(IMAGE)]
  backbone = _backbone()
  hidden = layers.subtract([backbone(image) for image in images])
  return tf.keras.Model(images, layers.Dense(NUM_CLASSES)(hidden))


def model_in_sequential():
  return tf.keras.Sequential([_backbone(), layers.Dense(NUM_CLASSES)])


def model_as_output():
  inputs = tf.keras.Input(SEQUENCE)
  top = tf.keras.Sequential([layers.Flatten(input_shape=SEQUENCE), layers.Dense(NUM_CLASSES)])
  return tf.keras.Model(inputs, top(layers.Activation('tanh')(inputs)))


PORTABLE = (image_layers, sequence_layers, own_layer_in_sequence, attention, two_inputs,
            word_embedding, scaled_sum, model_as_layer, model_called_twice, model_in_sequential,
            model_as_output)


def _causal_attention(inputs):
  return layers.Attention(causal=True)([inputs, layers.Conv1D(4, 1)(inputs)])


def _initial_state(inputs):
  _, *state = layers.LSTM(3, recurrent_activation='sigmoid', return_state=True)(inputs)
  return layers.LSTM(3, recurrent_activation='sigmoid')(inputs, initial_state=state)


def _regularized_activity(inputs):
  return tf.keras.Sequential([layers.InputLayer(SEQUENCE),
                              layers.Dense(2, activity_regularizer='l2')])(inputs)


# What makes a layer, or another function of a sequence, and why Keras 3 cannot load its model.
_NOT_PORTABLE = (
    (lambda: layers.LSTM(3), 'hard_sigmoid of lstm has another slope in Keras 3'),
    (lambda: layers.Lambda(lambda inputs: 2 * inputs),
     'a Lambda layer contains code for a version of Python'),
    (lambda: layers.LayerNormalization(axis=[1, 2]), 'layer_normalization has several axes'),
    (lambda: layers.LocallyConnected1D(2, 3), 'Keras 3 has no LocallyConnected1D'),
    (lambda: _causal_attention, 'Keras 3 has no argument causal of Attention'),
    (lambda: _initial_state, 'lstm_1 has another layer as an argument'),
    (lambda: lambda inputs: 2 * inputs, 'Keras 3 has no TensorFlowOpLayer'),
    (lambda: _regularized_activity, 'dense in sequential may have an effect on training when it is '
                                    'called twice'))


def not_portable():
  """Yields models that Keras 3 cannot load, and the reasons."""
  for make, reason in _NOT_PORTABLE:
    tf.keras.backend.clear_session()
    inputs = tf.keras.Input(SEQUENCE)
    hidden = layers.Flatten()(make()(inputs))
    yield tf.keras.Model(inputs, layers.Dense(NUM_CLASSES)(hidden)), reason
  yield (tf.keras.Sequential([layers.Dense(2, name='block/dense', input_shape=SEQUENCE)]),
         'the name block/dense contains a slash')
