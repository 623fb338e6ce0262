// Command adaptive measures what one request costs at the lanes, beside limiters with less to do, in one run on one machine:
// failsafe-go's adaptive limiter, go-concurrency-limits, and the weighted semaphore of x/sync, which neither adapts nor is
// fair. It prints one table; `make bench-adaptive` runs it. The same measurements are benchmarks, for profiles:
//
//	go test -bench 'Admit/headgate' -cpuprofile cpu.prof ./adaptive
package main
