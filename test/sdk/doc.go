// Package sdk tests what the official client libraries make of refusals: through a real Envoy, the libraries of OpenAI
// (Python and Node), Anthropic and Google raise the right exception with our message, retry what may succeed after the time
// that the refusal names, and send once what is hopeless. `make test-sdk` installs the libraries and runs it.
package sdk
