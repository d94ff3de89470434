// Package edge serves records to WebSockets and to streams of events: it takes connections, speaks the protocol of edge/README.md (frame has its
// forms), and brings each session what its subscriptions of the hub have. Of the way to the service it knows a hub, a Publisher and a Consumer, nothing more.
//
// It keeps no goroutine for a session. Sessions are dealt to workers; a session belongs to one worker for its whole life, and only that
// worker writes to its socket, so that no two frames can interleave. A stream of events is a session that takes no input and whose frames are
// events; worker.go, compose.go, write.go, pass.go and end.go are of both, events.go, eventhead.go and eventbody.go have what is not the same.
//
//	Goroutine                      Started and awaited by   Owns                                            Ends when
//	accept                         caller of Serve          the listener                                    ctx ends, Drain
//	handshake, one a connection    Serve                    a connection until it is handed over            head read and answered; HandshakeTimeout
//	worker (Config.Workers)        Serve                    its sessions: every write, every end;           Serve ends
//	                                                        their subscriptions and publishes
//	poller, one a worker           Serve                    reads, parsers, epoll                           its worker has ended
//	task (Subscribes, Publishes)   Serve                    one call at a time (of Publish: by request)     the call ends; its context does
//	ways of OpenConsume            the Consumer             a consume's stream                              the consume ends
//	ways of OpenPublish            the Publisher            a socket's stream of publishes                  idle for some seconds, hung up
//	request                        net/http, Serve          a connection that is no session: the page,      as in net/http
//	                                                        a publish by POST
//
// Fields of a session are grouped by owner. What passes between the goroutines goes through a worker's inbox, or is atomic.
//
// A call has its deadline from when the client asked for it; waiting for a place among the calls costs no goroutine, and no topic has more
// than half of the places. Input that is held (unfinished messages, what waits for a worker, queued publishes, keys) is bounded for the
// process, by Config.MaxInputBytes, see input.
//
// A descriptor's number is used again as soon as it is closed, by any connection; so no number is kept. Reads and writes go through
// syscall.RawConn, which holds the descriptor during the call and refuses after Close, and epoll's user data is a place in a table with
// a generation.
//
// Locks: inbox.mu, poller.mu, tasks.mu, Server.mu. None is taken while another is held, and nothing blocks while one is held.
package edge
