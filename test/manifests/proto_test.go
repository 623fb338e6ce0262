package manifests

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	istioapi "istio.io/api/networking/v1alpha3"
	istiov1 "istio.io/client-go/pkg/apis/networking/v1"
	istiov1alpha3 "istio.io/client-go/pkg/apis/networking/v1alpha3"
	"sigs.k8s.io/yaml"
)

// checkProto decodes the spec of Istio's types again: their own decoding passes over unknown fields.
func checkProto(t *testing.T, m manifest) {
	t.Helper()
	var spec proto.Message
	switch m.object.(type) {
	case *istiov1alpha3.EnvoyFilter:
		spec = &istioapi.EnvoyFilter{}
	case *istiov1.Gateway:
		spec = &istioapi.Gateway{}
	case *istiov1.VirtualService:
		spec = &istioapi.VirtualService{}
	default:
		return
	}
	var whole struct {
		Spec any `json:"spec"`
	}
	if err := yaml.Unmarshal(m.yaml, &whole); err != nil {
		t.Fatal(err)
	}
	unmarshalProto(t, whole.Spec, spec)
}

// unmarshalProto turns a decoded YAML value into a message; unknown fields end the test.
func unmarshalProto(t *testing.T, value any, into proto.Message) {
	t.Helper()
	text, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = yaml.YAMLToJSON(text); err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v\n%s", into.ProtoReflect().Descriptor().FullName(), err, text)
	}
}
