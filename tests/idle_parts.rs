//! What no objective reads stays as it was initialised, is named in the plan, and is not exported.

use std::path::Path;

use crate::support::{Place, Running, checkpoints, done};
use safetensors::SafeTensors;

/// The tensors of pooler and pair head.
const IDLE: [&str; 4] =
    ["bert.pooler.dense.bias", "bert.pooler.dense.weight", "cls.seq_relationship.bias", "cls.seq_relationship.weight"];

fn train(place: &Place, optimizer: &str, pair: &str) -> String {
    let run = place.path(&format!("{optimizer}-{pair}"));
    let sets = [format!("optimizer.kind={optimizer}"), format!("objective.pair={pair}")];
    let sets = ["--set", &sets[0], "--set", &sets[1], "--set", "optimizer.weight_decay=0.1"];
    let ended = Running::start_with(&place.config(21, 1), &run, &sets).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let named = ended.log.contains("frozen: bert.pooler.dense, cls.seq_relationship");
    assert_eq!(named, pair == "none", "{}", ended.log);
    run
}

/// The weights of a run's checkpoint, the `number`th newest.
fn weights(run: &str, number: usize) -> Vec<u8> {
    let name = checkpoints(run).swap_remove(number);
    std::fs::read(Path::new(run).join("checkpoints").join(name).join("model.safetensors")).unwrap()
}

#[test]
fn pooler_and_pair_head_stay_where_no_objective_reads_them() {
    let place = Place::new();
    for optimizer in ["lamb", "adamw"] {
        let run = train(&place, optimizer, "none");
        let (late, early) = (weights(&run, 0), weights(&run, 2));
        let (late, early) = (SafeTensors::deserialize(&late).unwrap(), SafeTensors::deserialize(&early).unwrap());
        for name in late.names() {
            let same = late.tensor(name).unwrap().data() == early.tensor(name).unwrap().data();
            assert_eq!(same, IDLE.contains(&name), "{optimizer}: {name}");
        }
        let folder = place.path(&format!("{optimizer}-model"));
        done(&["export", &run, "--output", &folder]);
        let exported = std::fs::read(format!("{folder}/model.safetensors")).unwrap();
        let exported = SafeTensors::deserialize(&exported).unwrap();
        let mut left_out: Vec<_> = late.names().into_iter().filter(|name| exported.tensor(name).is_err()).collect();
        left_out.sort_unstable();
        assert_eq!(left_out, IDLE);
        let config = std::fs::read_to_string(format!("{folder}/config.json")).unwrap();
        assert!(config.contains("BertForMaskedLM"), "{config}");
    }
    let run = train(&place, "lamb", "nsp");
    let (late, early) = (weights(&run, 0), weights(&run, 2));
    assert_ne!(
        SafeTensors::deserialize(&late).unwrap().tensor(IDLE[1]).unwrap(),
        SafeTensors::deserialize(&early).unwrap().tensor(IDLE[1]).unwrap()
    );
}
