//! Modules that no objective uses must keep their initial weights, be named in the plan and not be exported.

use std::path::Path;

use crate::support::{Running, TestDir, checkpoints, done};
use safetensors::SafeTensors;

/// Tensors of the pooler and of the sentence-pair (NSP/SOP) head.
const UNUSED: [&str; 4] =
    ["bert.pooler.dense.bias", "bert.pooler.dense.weight", "cls.seq_relationship.bias", "cls.seq_relationship.weight"];

fn train(dir: &TestDir, optimizer: &str, pair: &str) -> String {
    let run = dir.path(&format!("{optimizer}-{pair}"));
    let sets = [format!("optimizer.kind={optimizer}"), format!("objective.pair={pair}")];
    let sets = ["--set", &sets[0], "--set", &sets[1], "--set", "optimizer.weight_decay=0.1"];
    let ended = Running::start_with(&dir.config(21, 1), &run, &sets).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let named = ended.log.contains("frozen: bert.pooler.dense, cls.seq_relationship");
    assert_eq!(named, pair == "none", "{}", ended.log);
    run
}

/// Returns the weights of checkpoint `number` in the list of checkpoints, which begins with the newest.
fn weights(run: &str, number: usize) -> Vec<u8> {
    let name = checkpoints(run).swap_remove(number);
    std::fs::read(Path::new(run).join("checkpoints").join(name).join("model.safetensors")).unwrap()
}

#[test]
fn pooler_and_pair_head_stay_unchanged_without_a_pair_objective() {
    let dir = TestDir::new();
    for optimizer in ["lamb", "adamw"] {
        let run = train(&dir, optimizer, "none");
        let (late, early) = (weights(&run, 0), weights(&run, 2));
        let (late, early) = (SafeTensors::deserialize(&late).unwrap(), SafeTensors::deserialize(&early).unwrap());
        for name in late.names() {
            let same = late.tensor(name).unwrap().data() == early.tensor(name).unwrap().data();
            assert_eq!(same, UNUSED.contains(&name), "{optimizer}: {name}");
        }
        let folder = dir.path(&format!("{optimizer}-model"));
        done(&["export", &run, "--output", &folder]);
        let exported = std::fs::read(format!("{folder}/model.safetensors")).unwrap();
        let exported = SafeTensors::deserialize(&exported).unwrap();
        let mut left_out: Vec<_> = late.names().into_iter().filter(|name| exported.tensor(name).is_err()).collect();
        left_out.sort_unstable();
        assert_eq!(left_out, UNUSED);
        let config = std::fs::read_to_string(format!("{folder}/config.json")).unwrap();
        assert!(config.contains("BertForMaskedLM"), "{config}");
    }
    let run = train(&dir, "lamb", "nsp");
    let (late, early) = (weights(&run, 0), weights(&run, 2));
    assert_ne!(
        SafeTensors::deserialize(&late).unwrap().tensor(UNUSED[1]).unwrap(),
        SafeTensors::deserialize(&early).unwrap().tensor(UNUSED[1]).unwrap()
    );
}
