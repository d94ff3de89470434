// What close codes mean, for people (the table of edge/README.md).

const meanings = {
  1000: 'closed in order',
  1001: 'the edge was stopped',
  1002: 'a frame was not WebSocket',
  1003: 'a frame of the wrong type',
  1005: 'closed without a code',
  1006: 'the connection broke: no close frame came',
  1007: 'text was not UTF-8',
  1009: 'a message was larger than the edge takes',
  1011: 'a fault of the edge',
  1015: 'the TLS handshake failed',
  4000: 'the edge is shut down or replaced; another one has everything',
  4001: 'this reader was too slow',
  4003: 'the service, or Kafka behind it, was away for too long',
  4004: 'nothing was heard for too long',
  4006: 'the token expired',
  4008: 'the connection was old enough',
  4029: 'over a limit of the edge',
  4500: 'the edge did not understand a message',
  4501: 'not authenticated',
  4503: 'not allowed',
  4504: 'the topic does not exist',
};

// comesBack says by the code's range whether a client may reconnect; a new code needs no new client.
export const comesBack = (code) =>
  code === 1001 || code === 1005 || code === 1006 || (code >= 1011 && code <= 1015) || (code >= 4000 && code <= 4499);

export const meaning = (code) => meanings[code] ?? (comesBack(code) ? 'come back' : 'stay away');
