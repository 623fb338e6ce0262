# The sidecar's image: one static binary, root certificates and nothing else. `make image` builds it; for other
# architectures: docker buildx build --platform linux/amd64,linux/arm64 .
ARG GO_VERSION=1.26

# Builds for the target on the machine that builds: Go needs no emulation.
FROM --platform=$BUILDPLATFORM golang:${GO_VERSION} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS=linux
ARG TARGETARCH
ARG VERSION=dev
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /root-fs/extproc ./cmd/extproc
RUN deploy/image/rootfs.sh /root-fs /user-fs

FROM scratch
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Headgate extproc" \
      org.opencontainers.image.description="Envoy external processor for byte admission, fair lanes and session leases" \
      org.opencontainers.image.source="https://github.com/headgate/headgate" \
      org.opencontainers.image.documentation="https://github.com/headgate/headgate/tree/main/docs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build --chown=0:0 /root-fs /
# Where the socket is by default. Unlike the rest it belongs to the user.
COPY --from=build --chown=65532:65532 /user-fs/run /run
# A number, so that Kubernetes can tell that it is not root.
USER 65532:65532
ENTRYPOINT ["/extproc"]
