// Package llm proves the product between a server and clients that others wrote: FastAPI under uvicorn, which answers the headers of a
// stream at once as inference servers do, and aimock, which plays OpenAI's and Anthropic's APIs; and those two
// providers' own Python libraries. It runs with `make e2e-llm`, which installs them, and ends with a table of what each
// tenant was served with lanes and without.
package llm
