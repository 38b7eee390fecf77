"""Models on disk: the same model comes back, bit for bit, or one sentence says why not."""

import contextlib
import hashlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from sklearn.exceptions import NotFittedError

import excise
from conftest import SMALL, blobs, forged, forgetful
from excise import InputError, KeyValueClassifier, ModelFileError, storage
from excise.bottleneck.model import Bottleneck
from excise.records import LOG
from excise.tensorfile import open_tensors


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, model: KeyValueClassifier) -> Path:
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    model.save(path)
    return path


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "model.safetensors"


def same(a: KeyValueClassifier, b: KeyValueClassifier) -> bool:
    arrays = [(getattr(a.bottleneck_, name), getattr(b.bottleneck_, name)) for name in ("projection", "keys", "values")]
    return all(x.tobytes() == y.tobytes() for x, y in [*arrays, (a.classes_, b.classes_)])


# -- what holds for every model ---------------------------------------------------------------------------------------

names = st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=4, unique=True)
numbers = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=4, unique=True)


@given(st.data())
def test_saved_and_loaded_gives_the_same_model(damaged: Path, data: st.DataObject) -> None:
    c, m, d, f = (data.draw(st.integers(1, 4), label=axis) for axis in "cmdf")
    labels = data.draw(
        st.one_of(names.map(lambda n: np.array(n, dtype=object)), names.map(np.array), numbers.map(np.array))
    )
    classes = np.unique(labels)
    if len(classes) < 2:
        return
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    shapes = [(f, c, d), (c, m, d), (c, m, len(classes))]
    mask = data.draw(st.sampled_from([None, generator.random((c, m)) < 0.5]))
    model = KeyValueClassifier(codebooks=c, pairs=m, key_dim=d)
    tensors = [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]
    model.bottleneck_ = Bottleneck(*tensors, 1, data.draw(st.sampled_from(["mean", "sum"])), mask)
    model._begin_anew(mask)
    model.classes_, model.n_features_in_, model.history_ = classes, f, [0.1]
    model.save(damaged)
    first = damaged.read_bytes()
    loaded = excise.load(damaged)
    loaded.save(damaged)
    assert damaged.read_bytes() == first
    assert loaded.classes_.dtype == classes.dtype
    assert loaded.classes_.tolist() == classes.tolist()
    x = generator.standard_normal((3, f), dtype=np.float32)
    assert loaded.logits(x).tobytes() == model.logits(x).tobytes()
    assert np.array_equal(loaded.codes(x), model.codes(x))


def test_predictions_and_attributes_survive(saved: Path, model: KeyValueClassifier, data: Any) -> None:
    X, _ = data
    loaded = excise.load(saved)
    assert loaded.predict_proba(X).tobytes() == model.predict_proba(X).tobytes()
    assert loaded.n_features_in_ == X.shape[1]
    assert loaded.history_ == model.history_
    assert not hasattr(loaded, "training_codes_")
    assert not hasattr(loaded, "feature_names_in_")


def test_tensors_are_mapped_and_read_only(saved: Path) -> None:
    loaded = excise.load(saved, verify=False)
    assert not loaded.bottleneck_.values.flags.writeable
    assert not loaded.bottleneck_.values.flags.owndata
    assert all(t.ctypes.data % t.itemsize == 0 for t in open_tensors(saved).tensors.values())
    assert min(t.ctypes.data for t in open_tensors(saved).tensors.values()) % 64 == 0


def test_any_safetensors_reader_can_open_it(saved: Path, model: KeyValueClassifier) -> None:
    tensors = load_file(saved)
    assert set(tensors) == {"projection", "keys", "values", *LOG}
    assert np.array_equal(tensors["values"], model.bottleneck_.values)


def test_a_loaded_model_goes_on(saved: Path, data: Any, tmp_path: Path) -> None:
    X, y = data
    loaded = excise.load(saved)
    mask = np.zeros(loaded.bottleneck_.keys.shape[:2], bool)
    mask[:, ::2] = True
    masked = loaded.with_mask(mask)
    masked.save(tmp_path / "masked")
    again = excise.load(tmp_path / "masked")
    assert np.array_equal(again.bottleneck_.mask, mask)
    assert np.array_equal(again.predict(X), masked.predict(X))
    before = saved.read_bytes()
    loaded.partial_fit(X, y)
    assert len(loaded.history_) == SMALL["epochs"] + 1
    loaded.fit(X, y)
    assert saved.read_bytes() == before


def test_a_model_may_replace_the_file_it_is_mapped_from(model: KeyValueClassifier, data: Any, tmp_path: Path) -> None:
    path = tmp_path / "model"
    model.save(path)
    loaded = excise.load(path)
    loaded.save(path)
    assert same(excise.load(path), loaded)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint64, np.float16, np.float64, "U7", object])
def test_classes_keep_their_type(dtype: Any, tmp_path: Path) -> None:
    X, y = blobs(30, classes=2)
    labels = np.array(["no", "yes"])[y] if dtype in ("U7", object) else y
    fitted = KeyValueClassifier(**SMALL).fit(X, labels.astype(dtype))
    fitted.save(tmp_path / "model")
    classes = excise.load(tmp_path / "model").classes_
    assert classes.dtype == fitted.classes_.dtype
    assert np.array_equal(classes, fitted.classes_)


def test_classes_without_a_json_form_are_refused(model: KeyValueClassifier, tmp_path: Path) -> None:
    other = model.with_mask(None)
    other.classes_ = np.array([b"a", b"b", b"c"])
    with pytest.raises(InputError, match="classes of type bytes8, as b'a', cannot be saved: use integers, strings"):
        other.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_feature_names_survive(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    X, y = blobs(30)
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])])
    KeyValueClassifier(**SMALL).fit(frame, y).save(tmp_path / "model")
    loaded = excise.load(tmp_path / "model")
    assert loaded.feature_names_in_.tolist() == list(frame.columns)
    loaded.predict(frame)  # a missing or differing name would warn


def test_parameters_of_the_machine_and_generators_stay_behind(tmp_path: Path, data: Any) -> None:
    settings = SMALL | {"random_state": np.random.RandomState(0), "learning_rate": np.float32(0.5), "n_jobs": 2}
    KeyValueClassifier(**settings).fit(*data).save(tmp_path / "model")
    loaded = excise.load(tmp_path / "model")
    assert (loaded.random_state, loaded.n_jobs, loaded.learning_rate) == (None, None, 0.5)
    assert {**loaded.get_params(), **SMALL} == KeyValueClassifier(**SMALL, learning_rate=0.5).get_params()


def test_the_number_of_threads_leaves_no_trace(tmp_path: Path, data: Any) -> None:
    for threads in (1, 2):
        KeyValueClassifier(**SMALL, n_jobs=threads).fit(*data).save(tmp_path / str(threads))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_the_layout_is_that_of_the_bottleneck(saved: Path, model: KeyValueClassifier, tmp_path: Path) -> None:
    other = model.with_mask(None).set_params(codebooks=99, pairs=5, key_dim=2, top_k=3, decoder="sum")
    other.save(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == saved.read_bytes()
    assert excise.load(tmp_path / "model").get_params() == model.get_params()


def test_the_tensors_decide_the_layout(saved: Path, model: KeyValueClassifier) -> None:
    parameters = json.loads(open_tensors(saved).metadata["parameters"]) | {"codebooks": 99}
    for changed in (parameters, {}):
        loaded = excise.load(forged(saved, parameters=json.dumps(changed)))
        assert loaded.bottleneck_.layout.items() <= loaded.get_params().items()


@pytest.mark.parametrize("seed", [True, np.int64(3), np.uint32(2**32 - 1)])
def test_seeds_are_stored_as_whole_numbers(seed: Any, model: KeyValueClassifier, tmp_path: Path) -> None:
    model.with_mask(None).set_params(random_state=seed).save(tmp_path / "model")
    assert excise.load(tmp_path / "model").random_state == int(seed)


def test_sizes_are_foreseen(saved: Path, model: KeyValueClassifier) -> None:
    axes = model.bottleneck_.axes
    log = sum(tensor.nbytes for name, tensor in open_tensors(saved).tensors.items() if name in LOG)
    assert 0 <= saved.stat().st_size - log - storage.model_bytes(axes) < 4096
    asked = {**model.get_params(), **axes}
    for examples in ({}, {"examples": 90}):  # a log is as long as it may get at most
        assert log <= storage.model_bytes(asked | examples) - storage.model_bytes(axes)
    masked = storage.model_bytes(axes | {"gate_unused": True}) - storage.model_bytes(axes)
    assert masked == model.mask.nbytes


def test_an_unfitted_model_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        KeyValueClassifier().save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_parameter_that_could_not_be_loaded_is_refused(model: KeyValueClassifier, tmp_path: Path) -> None:
    other = model.with_mask(None).set_params(learning_rate=-1)
    with pytest.raises(InputError, match="learning_rate"):
        other.save(tmp_path / "model")


# -- damage -----------------------------------------------------------------------------------------------------------


@given(st.data())
def test_truncation_anywhere_is_one_sentence(saved: Path, damaged: Path, data: st.DataObject) -> None:
    content = saved.read_bytes()
    damaged.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    for verify in (True, False):
        with pytest.raises(ModelFileError) as caught:
            excise.load(damaged, verify)
        assert str(caught.value).startswith(str(damaged))
        assert "\n" not in str(caught.value)


@given(st.data())
def test_one_changed_byte_anywhere_is_noticed(saved: Path, damaged: Path, data: st.DataObject) -> None:
    content = bytearray(saved.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    regions = [st.integers(0, 8), st.integers(8, header - 1), st.integers(header, len(content) - 1)]
    content[data.draw(st.one_of(regions))] ^= data.draw(st.integers(1, 255))
    damaged.write_bytes(content)
    with pytest.raises(ModelFileError):
        excise.load(damaged)


def test_the_header_is_protected_all_over(saved: Path, damaged: Path) -> None:
    content = saved.read_bytes()
    for place in range(0, 8 + int.from_bytes(content[:8], "little"), 3):
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 7]) + content[place + 1 :])
        with pytest.raises(ModelFileError):
            excise.load(damaged, verify=False)


def test_digests_of_tensors_are_skipped_on_request(saved: Path, damaged: Path) -> None:
    damaged.write_bytes(saved.read_bytes()[:-1] + b"\x55")
    excise.load(damaged, verify=False)
    with pytest.raises(ModelFileError, match=r"is damaged: its .* do not match their digest; copy it again"):
        excise.load(damaged)


def test_bytes_behind_the_end_are_noticed(saved: Path, damaged: Path) -> None:
    damaged.write_bytes(saved.read_bytes() + b"x")
    with pytest.raises(ModelFileError, match="has 1 bytes too many"):
        excise.load(damaged)


# -- other files ------------------------------------------------------------------------------------------------------


def write_npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(9))


def write_zip(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, np.zeros(9))


FOREIGN = {
    "is a folder: name a file": lambda p: p.mkdir(),
    "is empty: copy or write it again": lambda p: p.touch(),
    "does not exist: check the path": lambda p: None,
    "is not a regular file": os.mkfifo,
    "is too short for a safetensors file": lambda p: p.write_bytes(b"abc"),
    r"is not a safetensors file$": lambda p: p.write_bytes(np.random.default_rng(0).bytes(4096)),
    "it looks like a pickle": lambda p: p.write_bytes(pickle.dumps([1.0] * 99)),
    "it looks like a .npy array": write_npy,
    "it looks like a zip archive": write_zip,
    "no model of excise": lambda p: save_file({"x": np.zeros(3)}, p),
    "no model of excise: ": lambda p: save_file({"x": np.zeros(3)}, p, metadata={"format": "pt"}),
    "is not JSON": lambda p: p.write_bytes((9).to_bytes(8, "little") + b"{" * 20),
    "not a JSON ": lambda p: p.write_bytes((90000).to_bytes(8, "little") + b"{" + b"[" * 90000),
}


@pytest.mark.parametrize(("sentence", "write"), FOREIGN.items(), ids=list(FOREIGN))
def test_a_foreign_file_is_one_sentence(sentence: str, write: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path)
    sentence = "is not JSON" if sentence == "not a JSON " else sentence
    with pytest.raises(ModelFileError, match=sentence) as caught:
        excise.load(path)
    assert str(caught.value).startswith(f"{path} ")


def test_a_newer_file_says_to_upgrade(saved: Path) -> None:
    sentence = (
        r"was written by a newer excise \(format 3, this one reads 2\): upgrade it with pip install --upgrade excise"
    )
    with pytest.raises(ModelFileError, match=sentence):
        excise.load(forged(saved, format_version="3"))
    parameters = json.loads(open_tensors(saved).metadata["parameters"]) | {"spin": 1}
    with pytest.raises(ModelFileError, match=r"newer excise .it has a parameter 'spin'"):
        excise.load(forged(saved, parameters=json.dumps(parameters)))
    with pytest.raises(ModelFileError, match=r"newer excise .it has a parameter 'verbose'"):
        excise.load(forged(saved, parameters='{"verbose": "abc"}'))


FORGED = {
    "shapes of its tensors disagree": {"values": np.zeros((7, 16, 3), "f4")},
    "its keys are F64": {"keys": np.zeros((8, 16, 4))},
    "lists 2": {"classes": '{"dtype": "int64", "values": [0, 1]}'},
    "without equals": {"classes": '{"dtype": "int64", "values": [0, 2, 1]}'},
    "unknown type, 'O'": {"classes": '{"dtype": "O", "values": [0, 1, 2]}'},
    "not all int8": {"classes": '{"dtype": "int8", "values": [0, 1, 2000]}'},
    "not all U1": {"classes": '{"dtype": "U1", "values": [0, 1, 2]}'},
    "not all int64": {"classes": '{"dtype": "int64", "values": [0, 1.7, 3]}'},
    "not all int64; copy": {"classes": '{"dtype": "int64", "values": [false, true, 3]}'},
    "not all bool": {"classes": '{"dtype": "bool", "values": [0, 1, 2]}'},
    "not all float16": {"classes": '{"dtype": "float16", "values": [0.0, 1.0, 70000.0]}'},
    "not all float64": {"classes": '{"dtype": "float64", "values": [0.0, 1.0, NaN]}'},
    "not all U1; copy": {"classes": '{"dtype": "U1", "values": ["a", "b", "cd"]}'},
    "not all object": {"classes": '{"dtype": "object", "values": [["a"], ["b"], ["c"]]}'},
    "no readable 'classes'": {"classes": "[]"},
    "no readable 'history'": {"history": "{"},
    "cannot retrieve 99 pairs": {"bottleneck": '{"top_k": 99, "decoder": "mean"}'},
    "history is not a list of losses": {"history": '["x"]'},
    "history is not a list of losses; copy": {"history": "[[1]]"},
    "history is not a list of losses; copy it": {"history": "[{}]"},
    "history is not a list of losses; copy it again": {"history": '["0.5"]'},
    "epochs is 'x'": {"parameters": '{"epochs": "x"}'},
    "random_state is 'abc'": {"parameters": '{"random_state": "abc"}'},
    "random_state is 0.5": {"parameters": '{"random_state": 0.5}'},
    "random_state is True": {"parameters": '{"random_state": true}'},
    "random_state is -1": {"parameters": '{"random_state": -1}'},
    "int too large": {"parameters": f'{{"l2": 1{"0" * 400}}}'},
    "names 1 features": {"feature_names": '["a"]'},
    "header is incomplete": {"format_version": "one"},
}


@pytest.mark.parametrize(("sentence", "changes"), FORGED.items(), ids=list(FORGED))
def test_contents_that_disagree_are_one_sentence(saved: Path, sentence: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=f"is damaged: .*{re.escape(sentence)}"):
        excise.load(forged(saved, **changes))


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just(10**400)),
    lambda part: st.one_of(st.lists(part, max_size=3), st.dictionaries(st.text(max_size=4), part, max_size=3)),
    max_leaves=4,
)


@pytest.fixture(scope="module", params=["masked", "erased"])
def storied(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A model with requests of every state."""
    path = tmp_path_factory.mktemp("storied") / "model.safetensors"
    forgetful(erased=request.param == "erased").save(path)
    return path


def changed(content: Any, data: st.DataObject) -> Any:
    """JSON with something else in one place, at any depth, or with a part less."""
    places = sorted(content) if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    if not places or data.draw(st.integers(0, 3)) == 0:
        return data.draw(anything)
    place = data.draw(st.sampled_from(places))
    if data.draw(st.integers(0, 5)) == 0:
        del content[place]
    else:
        content[place] = changed(content[place], data)
    return content


def use(path: Path) -> None:
    """Load a model and do with it all that one can."""
    model = excise.load(path)
    x = blobs(3)[0]
    model.bottleneck_.logits(x)
    model.save(path)
    storage.versions_of(path)
    with contextlib.suppress(InputError):
        model.forget(model.classes_.tolist()[0])
    for request in model.requests_:
        with contextlib.suppress(InputError):
            model.restore(request.id)
    model.budget()
    with contextlib.suppress(InputError):
        model.erase()
    model.bottleneck_.logits(x)
    model.save(path)
    excise.load(path)


@settings(max_examples=300)
@given(st.data())
@pytest.mark.filterwarnings("ignore:.* of the retained classes' activations", "ignore:a codebook has")
def test_whatever_a_signed_header_says_gives_a_model_or_a_sentence(storied: Path, data: st.DataObject) -> None:
    metadata = open_tensors(storied).metadata
    names = ["parameters", "bottleneck", "classes", "history", "feature_names", "versions", "requests", "recipe"]
    name = data.draw(st.sampled_from([*names, "requests", "recipe", "requests"]))
    content = json.loads(metadata.get(name, '["a", "b", "c", "d", "e", "f"]'))
    path = forged(storied, **{name: json.dumps(changed(content, data))})
    with contextlib.suppress(ModelFileError):
        use(path)


@pytest.mark.filterwarnings("ignore:the log of activations was erased whole:UserWarning")
@settings(max_examples=200)
@given(st.data())
@pytest.mark.filterwarnings("ignore:.* of the retained classes' activations", "ignore:a codebook has")
def test_whatever_signed_tensors_hold_gives_a_model_or_a_sentence(storied: Path, data: st.DataObject) -> None:
    tensors = open_tensors(storied).tensors
    name = data.draw(st.sampled_from(sorted(set(tensors) - {"projection", "keys", "values"})))
    tensor = tensors[name].copy()
    kind = data.draw(st.sampled_from(["bits", "cut", "type", "flat", "drop", "name"]))
    if kind == "bits":
        place = data.draw(st.integers(0, tensor.nbytes - 1))
        tensor.reshape(-1).view("u1")[place] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        tensor = tensor[: data.draw(st.integers(0, len(tensor)))]
    elif kind == "type":
        tensor = tensor.astype(data.draw(st.sampled_from(["?", "u1", "<u2", "<u4", "<i8", "<f4"])))
    elif kind == "flat":
        tensor = tensor.reshape(data.draw(st.sampled_from([(-1,), (1, -1), (-1, 1), (1, 1, -1)])))
    drop = [name] if kind in ("drop", "name") else []
    other = {data.draw(st.sampled_from(["before_01", "before_99", "before_x", "codes"])): tensor}
    path = forged(storied, drop, **(other if kind == "name" else {} if kind == "drop" else {name: tensor}))
    with contextlib.suppress(ModelFileError):
        use(path)


def test_a_model_of_version_1_still_loads(tmp_path: Path) -> None:
    path = Path(__file__).with_name("data") / "model-v1.safetensors"
    assert storage.versions_of(path)["format"] == "1"
    model = excise.load(path)
    digest = hashlib.sha256(model.logits(blobs()[0]).tobytes()).hexdigest()
    assert digest == "bc21df6cf9bafad6f1049d3ef99adfc1ea1eeaa2acc513b8e35935669e7c79fd"
    assert (model.requests_, model.activations_, model.recipe_, model.erased_) == ((), None, None, None)
    assert np.array_equal(model.base_mask_, model.mask)
    assert model.mask.any()
    model.forget("bee", X=blobs()[0][1::3])
    model.save(tmp_path / "model")
    assert storage.versions_of(tmp_path / "model")["format"] == "2"
    assert excise.load(tmp_path / "model").logits(blobs()[0]).tobytes() == model.logits(blobs()[0]).tobytes()
    with pytest.raises(ModelFileError, match=r"is damaged: it holds .*, not projection, keys, values"):
        excise.load(forged_elsewhere(path, tmp_path))


def forged_elsewhere(path: Path, folder: Path) -> Path:
    """Version 1 with a tensor of version 2."""
    copy = folder / "copy"
    copy.write_bytes(path.read_bytes())
    return forged(copy, erased=np.zeros(16, "u1"))


def test_a_mask_put_past_the_model_is_not_saved(model: KeyValueClassifier, tmp_path: Path) -> None:
    other = model.with_mask(None)
    other.bottleneck_ = other.bottleneck_.with_mask(np.ones((8, 16), bool))
    with pytest.raises(InputError, match="is not that of its requests: set one with with_mask, and save that"):
        other.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_killed_writer_leaves_the_old_model(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(saved.read_bytes())
    script = f"""
import excise, numpy as np
model = excise.load({str(saved)!r})
while True:
    model = model.with_mask(np.random.rand(8, 16) < .5)
    model.save({str(path)!r})
    print("saved", flush=True)
"""
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    with writer:
        writer.stdout.readline()
        time.sleep(0.05)
        writer.send_signal(signal.SIGKILL)
    excise.load(path)
