// Package bodyscan reads, while a request body passes by in chunks, what the body would cost the model behind it: how
// many messages and tools it has, how many answers it asks for, whether the answer streams, and about how many tokens its
// text makes. It never keeps the body.
//
// # What counts
//
// Features are the members of the top-level object and of one wrapper, the object under its member "request". The two
// levels are read as one request: messages and tools add up, the larger fan-out holds, and a stream flag of the top level
// beats one in the wrapper. A repeated name adds up too, so whichever of two equal names the upstream's parser takes, the
// count is at least what that parser sees. Counts never go down as more of the body arrives.
//
//   - Messages: elements of "messages", "input", "prompt", "contents", "requests" and "instances"; 1 where one of them is an
//     object or a non-empty string; the objects of a document that is a list, whose features add up. Numbers in "input" and
//     "prompt", and in the lists in them, are tokens and no messages.
//   - Tools: elements of "tools", "functions" and "functionDeclarations". An element of "tools" that holds
//     functionDeclarations of its own counts as many as it declares, and at least 1.
//   - Fanout: the largest of "n", "candidateCount" and "candidate_count", the latter two also in "generationConfig".
//   - Stream: the boolean "stream".
//   - Tokens: a quarter for every ASCII code point of text, one for every other, rounded down. Text is every string value
//     and every member name below the two feature levels: property names of a tool's schema are prompt text, while the names
//     at the feature levels are the protocol's.
//
// Names match without regard to case, as encoding/json folds it, after escapes are decoded: what an upstream's decoder takes
// for "messages" counts.
//
// # Invariants
//
//   - The result depends on the bytes alone, not on where they are cut into chunks.
//   - Memory is one Scanner of fixed size; nothing is allocated.
//   - A fault in the grammar of RFC 8259 ends the scan as not JSON, at no further cost; what was counted before it does not count.
//   - More than 10 000 values, or 32 containers inside one another, are exhausting: no fault after that undoes it. Within the
//     first MiB of the body, which is more than an evidence window, the scan goes on all the same, so that padding hides neither
//     members nor the model; only what is in containers that deep is not looked at. What comes after that costs nothing.
//   - NaN, Infinity and -Infinity are values, since Python's decoder takes them. What follows the document changes nothing:
//     some decoders stop there.
//   - A byte order mark before the document is accepted, as many servers strip it. Bytes that are not UTF-8 are no fault
//     inside strings.
package bodyscan
