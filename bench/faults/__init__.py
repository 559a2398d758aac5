"""The fault run: a gateway between engines that misbehave and clients that do, everything over real sockets."""
