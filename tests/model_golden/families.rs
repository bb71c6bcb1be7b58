//! The other families. tests/golden/make_families.py wrote the golden values.

use lambert_config::run::{Model, Precision};
use safetensors::SafeTensors;
use serde_json::Value;

use super::{Golden, bf16_is_close, logits, losses_and_gradients};

/// Golden models of the repository.
const TESTED: [(&str, &[u8]); 12] = [
    ("roberta", include_bytes!("../golden/families/roberta.safetensors")),
    ("roberta-untied", include_bytes!("../golden/families/roberta-untied.safetensors")),
    ("albert", include_bytes!("../golden/families/albert.safetensors")),
    ("albert-groups", include_bytes!("../golden/families/albert-groups.safetensors")),
    ("electra", include_bytes!("../golden/families/electra.safetensors")),
    ("electra-untied", include_bytes!("../golden/families/electra-untied.safetensors")),
    ("distilbert", include_bytes!("../golden/families/distilbert.safetensors")),
    ("distilbert-untied", include_bytes!("../golden/families/distilbert-untied.safetensors")),
    ("modernbert", include_bytes!("../golden/families/modernbert.safetensors")),
    ("modernbert-biases", include_bytes!("../golden/families/modernbert-biases.safetensors")),
    ("deberta", include_bytes!("../golden/families/deberta.safetensors")),
    ("deberta-decoder", include_bytes!("../golden/families/deberta-decoder.safetensors")),
];

/// Reads a golden file whose metadata has the keys of `[model]`. The defaults of the others are those of the family.
fn read(bytes: &[u8]) -> Golden {
    let (_, metadata) = SafeTensors::read_metadata(bytes).unwrap();
    let metadata = metadata.metadata().clone().unwrap();
    let keys: Value = serde_json::from_str(&metadata["model"]).unwrap();
    let family = serde_json::from_value(keys["family"].clone()).unwrap();
    let mut model = serde_json::to_value(lambert_config::run::Family::model(family)).unwrap();
    for (key, value) in keys.as_object().unwrap() {
        model[key] = value.clone();
    }
    Golden::read(serde_json::from_value(model).unwrap(), metadata["vocabulary"].parse().unwrap(), bytes)
}

#[test]
fn families_equal_transformers() {
    for (name, bytes) in TESTED {
        let golden = read(bytes);
        logits(name, &golden);
        losses_and_gradients(name, &golden, true);
        // Rows of padding are not predicted.
        let padded = Golden { model: Model { pad_vocabulary_to: 64, ..golden.model.clone() }, ..read(bytes) };
        logits(name, &padded);
        losses_and_gradients(name, &padded, true);
    }
}

#[test]
fn families_in_bf16_are_close_to_transformers() {
    for (name, bytes) in TESTED {
        let golden = read(bytes);
        let model = Model { precision: Precision::Bf16, ..golden.model.clone() };
        bf16_is_close(name, &Golden { model, ..golden }, 0.05);
    }
}

/// Tests random shapes. The variable LAMBERT_GOLDEN names the folder with the files of tests/golden/make_families.py.
#[test]
#[ignore = "needs the files that tests/golden/make_families.py writes"]
fn random_shapes_equal_transformers() {
    let folder = std::env::var("LAMBERT_GOLDEN").expect("LAMBERT_GOLDEN is the folder with the golden files");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let (name, golden) = (file.display().to_string(), read(&std::fs::read(&file).unwrap()));
        println!("{:?}", golden.model);
        logits(&name, &golden);
        losses_and_gradients(&name, &golden, true);
    }
}
