//! Random datasets of any size.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::Path;

use lambert_config::prep::{Packing, Pair};
use lambert_dataset::random::Key;
use lambert_dataset::tokenizer::{Special, TokenizerModel};
use lambert_dataset::{
    Corpus, Counts, Manifest, Sample, SampleRules, ShardWriter, VERSION, VocabularyFile, ranges, sha256_hex, shard_name,
};

/// Properties of a dataset.
pub struct Shape {
    pub rows: u64,
    pub longest: usize,
    pub rows_per_group: usize,
    pub shards: u64,
    pub pieces: usize,
}

/// Writes a dataset into `folder`. Nine in ten samples have the maximum length, the others a random length. Token
/// frequencies follow Zipf's law (1 / n).
pub fn write(folder: &Path, shape: &Shape) {
    std::fs::create_dir_all(folder).unwrap();
    let words = (5..shape.pieces).map(|piece| format!("w{piece}\n"));
    let vocabulary: String =
        ["[PAD]\n", "[UNK]\n", "[CLS]\n", "[SEP]\n", "[MASK]\n"].map(String::from).into_iter().chain(words).collect();
    std::fs::write(folder.join("vocab.txt"), &vocabulary).unwrap();
    let counts = Counts { samples: shape.rows, ..Counts::default() };
    let mut manifest = Manifest { counts, ..manifest(shape.longest, shape.pieces, vocabulary.as_bytes()) };
    let (mut ids, mut checksums) = (Vec::new(), Vec::new());
    for shard in 0..shape.shards {
        let name = shard_name(shard as usize, shape.shards as usize);
        let mut writer = ShardWriter::create(folder, &name, shape.pieces, shape.rows_per_group).unwrap();
        for row in shape.rows * shard / shape.shards..shape.rows * (shard + 1) / shape.shards {
            let mut rng = Key::new(7).with(row).rng();
            let length =
                if rng.below(10) > 0 { shape.longest } else { 3 + rng.below(shape.longest as u64 - 2) as usize };
            let words = (shape.pieces - 5) as f64;
            ids.clear();
            ids.extend((0..length).map(|_| 5 + (words.powf(rng.unit_f64()) as u32).min(shape.pieces as u32 - 6)));
            (ids[0], ids[length - 1]) = (2, 3);
            manifest.counts.tokens += length as u64;
            let sample = Sample { input_ids: &ids, segment_b_start: length as u16 / 2, pair_label: (row % 2) as u8 };
            writer.push(sample).unwrap();
        }
        let written = writer.finish().unwrap();
        manifest.shards.push(written.shard);
        checksums.extend(written.ranges);
    }
    std::fs::write(folder.join(ranges::CHECKSUMS), ranges::to_json(&manifest, &checksums)).unwrap();
    std::fs::write(folder.join("manifest.json"), manifest.to_json()).unwrap();
}

/// Manifest of a dataset without shards.
pub fn manifest(longest: usize, pieces: usize, vocabulary: &[u8]) -> Manifest {
    Manifest {
        version: VERSION,
        split: "train".to_owned(),
        preparation: String::new(),
        corpus: Corpus::default(),
        sequence_length: longest,
        lowercase: true,
        vocabulary: VocabularyFile {
            model: TokenizerModel::WordPiece,
            path: "vocab.txt".to_owned(),
            size: pieces,
            bytes: vocabulary.len() as u64,
            sha256: sha256_hex(vocabulary),
        },
        special: Special { pad: 0, unk: 1, cls: 2, sep: 3, mask: 4 },
        samples: SampleRules {
            pair: Pair::Nsp,
            packing: Packing::default(),
            short_sequence_probability: 0.1,
            passes: 1,
            held_out: 0.0,
            seed: 1,
        },
        counts: Counts::default(),
        sources: Vec::new(),
        held_out: None,
        unigram_entropy: 1.0,
        shards: Vec::new(),
    }
}
