//! Padding rows of the vocabulary affect neither training nor export.

use crate::support::{Ended, Running, TestDir, done};
use safetensors::SafeTensors;

/// Vocabulary size in the configuration of `support`.
const VOCABULARY: usize = 300;

fn train(dir: &TestDir, name: &str, rows: usize) -> Ended {
    let set = format!("model.pad_vocabulary_to={rows}");
    let ended = Running::start_with(&dir.config(20, 2), &dir.path(name), &["--set", &set]).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    ended
}

/// Shape and bytes of the exported token embeddings.
fn exported(dir: &TestDir, name: &str) -> (Vec<usize>, Vec<u8>) {
    let folder = dir.path(&format!("{name}-model"));
    done(&["export", &dir.path(name), "--output", &folder]);
    let config = std::fs::read_to_string(format!("{folder}/config.json")).unwrap();
    assert!(config.contains("\"vocab_size\": 300"), "{config}");
    let bytes = std::fs::read(format!("{folder}/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("cls.predictions.bias").unwrap().shape(), [VOCABULARY]);
    let table = file.tensor("bert.embeddings.word_embeddings.weight").unwrap();
    (table.shape().to_vec(), table.data().to_vec())
}

#[test]
fn padding_rows_have_no_effect() {
    let dir = TestDir::new();
    let (plain, padded) = (train(&dir, "plain", 1), train(&dir, "padded", 64));
    for (plain, padded) in plain.records.iter().zip(&padded.records) {
        assert_eq!(plain.batch.digest, padded.batch.digest);
        assert!((plain.loss - padded.loss).abs() < 1e-4, "{} and {}", plain.loss, padded.loss);
    }
    let ((shape, plain), (same, padded)) = (exported(&dir, "plain"), exported(&dir, "padded"));
    assert_eq!((shape, same), (vec![VOCABULARY, 32], vec![VOCABULARY, 32]));
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    let far = numbers(&plain).iter().zip(numbers(&padded)).map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp).unwrap();
    assert!(far < 1e-3, "exported weights differ by {far}");
    let guesses = done(&["fill-mask", &dir.path("padded"), "the [MASK] .", "--top", "300"]);
    assert!(!guesses.contains("NaN"), "{guesses}");
}
