//! Compares names, shapes and sizes with the published models.

use serde_json::json;

use super::*;
use lambert_config::run::{Family, Norm, Objective, Pair, RunConfig};

fn names(model: &Model) -> Vec<String> {
    let mut names: Vec<_> = Architecture::new(model, 1, 50).tensors().into_iter().map(|tensor| tensor.name).collect();
    names.sort();
    names
}

/// `BertForPreTraining(BertConfig(num_hidden_layers=1)).state_dict()` of transformers, without aliases.
const POST: [&str; 30] = [
    "bert.embeddings.LayerNorm.bias",
    "bert.embeddings.LayerNorm.weight",
    "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.token_type_embeddings.weight",
    "bert.embeddings.word_embeddings.weight",
    "bert.encoder.layer.0.attention.output.LayerNorm.bias",
    "bert.encoder.layer.0.attention.output.LayerNorm.weight",
    "bert.encoder.layer.0.attention.output.dense.bias",
    "bert.encoder.layer.0.attention.output.dense.weight",
    "bert.encoder.layer.0.attention.self.key.bias",
    "bert.encoder.layer.0.attention.self.key.weight",
    "bert.encoder.layer.0.attention.self.query.bias",
    "bert.encoder.layer.0.attention.self.query.weight",
    "bert.encoder.layer.0.attention.self.value.bias",
    "bert.encoder.layer.0.attention.self.value.weight",
    "bert.encoder.layer.0.intermediate.dense.bias",
    "bert.encoder.layer.0.intermediate.dense.weight",
    "bert.encoder.layer.0.output.LayerNorm.bias",
    "bert.encoder.layer.0.output.LayerNorm.weight",
    "bert.encoder.layer.0.output.dense.bias",
    "bert.encoder.layer.0.output.dense.weight",
    "bert.pooler.dense.bias",
    "bert.pooler.dense.weight",
    "cls.predictions.bias",
    "cls.predictions.transform.LayerNorm.bias",
    "cls.predictions.transform.LayerNorm.weight",
    "cls.predictions.transform.dense.bias",
    "cls.predictions.transform.dense.weight",
    "cls.seq_relationship.bias",
    "cls.seq_relationship.weight",
];

#[test]
fn tensor_names_match_transformers() {
    assert_eq!(names(&Model::default()), POST);
    let untied = names(&Model { tied_decoder: false, ..Model::default() });
    let more: Vec<_> = untied.iter().filter(|name| !POST.contains(&name.as_str())).collect();
    assert_eq!(more, ["cls.predictions.decoder.bias", "cls.predictions.decoder.weight"]);
    assert_eq!(untied.len(), 32);
    // Names in `MegatronBertForPreTraining`.
    let megatron = |name: &str| match name.rsplit_once('.').unwrap() {
        ("bert.embeddings.LayerNorm", leaf) => format!("bert.encoder.ln.{leaf}"),
        ("bert.encoder.layer.0.attention.output.LayerNorm", leaf) => {
            format!("bert.encoder.layer.0.attention.ln.{leaf}")
        }
        ("bert.encoder.layer.0.output.LayerNorm", leaf) => format!("bert.encoder.layer.0.ln.{leaf}"),
        _ => name.to_owned(),
    };
    let mut expected: Vec<String> = POST.iter().map(|name| megatron(name)).collect();
    expected.sort();
    assert_eq!(names(&Model { norm: Norm::Pre, ..Model::default() }), expected);
}

#[test]
fn tensors_are_unique_and_match_their_names() {
    for norm in [Norm::Post, Norm::Pre] {
        let model = Model { norm, tied_decoder: false, pad_vocabulary_to: 8, ..Model::default() };
        let architecture = Architecture::new(&model, 3, 50);
        let tensors = architecture.tensors();
        let ids: std::collections::HashSet<_> = tensors.iter().map(|tensor| tensor.id).collect();
        let names: std::collections::HashSet<_> = tensors.iter().map(|tensor| &tensor.name).collect();
        assert_eq!((ids.len(), names.len()), (tensors.len(), tensors.len()));
        for Tensor { id, role, name, shape, padding, .. } in &tensors {
            let is_norm = name.contains("LayerNorm") || name.contains(".ln.");
            assert_eq!(role.decays(), !name.ends_with("bias") && !is_norm, "{name}");
            assert_eq!(role.is_gain(), name.ends_with("weight") && is_norm, "{name}");
            let layer = name.strip_prefix("bert.encoder.layer.").and_then(|rest| rest.split('.').next()?.parse().ok());
            assert_eq!(id.layer, layer, "{name}");
            assert_eq!(*padding, (shape[0] == 56).then_some(6), "{name}");
        }
        let count: u64 = tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum();
        assert_eq!(count, architecture.parameters());
        assert_eq!(tensors.iter().filter(|tensor| tensor.padding.is_some()).count(), 4);
    }
}

/// The test changes each key of `[model]` separately, in models of three families.
#[test]
fn shaping_keys_are_those_that_change_tensors() {
    let bert = Model { embedding: Some(768), ..Model::default() };
    let mut found: Vec<String> =
        [bert, Family::Modernbert.model(), Family::DebertaV2.model()].iter().flat_map(shaping_keys).collect();
    let mut expected = SHAPING.map(str::to_owned);
    found.sort();
    found.dedup();
    expected.sort();
    assert_eq!(found, expected);
}

/// Keys of `[model]` that change the tensors of `model`.
fn shaping_keys(model: &Model) -> Vec<String> {
    let tensors = |model: &Model| Architecture::new(model, model.layers, 50).tensors();
    let table = toml::Table::try_from(model).unwrap();
    let change = |key: &str, value: &toml::Value| {
        Some(match (key, value) {
            ("family", _) => "roberta".into(),
            ("norm", toml::Value::String(norm)) => if norm == "pre" { "post" } else { "pre" }.into(),
            ("norm_kind", _) => "rms".into(),
            ("activation", _) => "gelu-tanh".into(),
            ("precision", _) => "bf16".into(),
            (_, toml::Value::Integer(number)) => (number + 7).into(),
            (_, toml::Value::Float(number)) => (number / 2.0 + 0.1).into(),
            (_, toml::Value::Boolean(value)) => (!value).into(),
            _ => return None,
        })
    };
    let shapes = |(key, value): (&String, &toml::Value)| {
        let mut table = table.clone();
        table.insert(key.clone(), change(key, value).unwrap_or_else(|| panic!("{key} is not changed here")));
        let other: Model = table.try_into().unwrap();
        assert_ne!(other, *model, "{key}");
        (tensors(&other) != tensors(model)).then(|| key.clone())
    };
    table.iter().filter_map(shapes).collect()
}

/// Two networks share embeddings, as in ELECTRA (arXiv 2003.10555). The gradients of the shared embeddings become final
/// last.
#[test]
fn gradients_of_shared_tensors_are_final_after_the_second_network() {
    let model = Model::default();
    let mut second = Network::new(&model, &[], 2, 50);
    second.name = |id| format!("second.{id:?}");
    let mut embeddings = second.segments[0].modules.to_vec();
    embeddings.iter_mut().for_each(|module| module.owner = Some(0));
    second.segments[0].modules = embeddings.into();
    let architecture = Architecture::from_networks(vec![Network::new(&model, &[], 1, 50), second]);
    let tensors = architecture.tensors();
    let of = |network: usize| tensors.iter().filter(move |tensor| tensor.id.network == network);
    let shared = |tensor: &&Tensor| tensor.name.starts_with("bert.embeddings");
    assert_eq!(tensors.iter().filter(shared).count(), 5);
    // The first network has three segments, and the second has four. Both tied decoders also read the token embeddings.
    assert!(of(0).filter(shared).all(|tensor| tensor.final_after_segment == 7));
    assert_eq!(of(0).filter(|tensor| !shared(tensor)).map(|tensor| tensor.final_after_segment).max(), Some(2));
    assert_eq!(of(1).map(|tensor| tensor.final_after_segment).min(), Some(4));
    assert!(tensors.iter().rev().take(5).all(|tensor| shared(&tensor)), "they lie last in memory");
    assert!(tensors.windows(2).all(|pair| pair[0].final_after_segment <= pair[1].final_after_segment));
    let count: u64 = tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum();
    assert_eq!(count, architecture.parameters());
}

#[test]
fn transformers_config_matches_the_model() {
    let (model, heads) = (Model::default(), [Head::MaskedLanguage, Head::Pair]);
    let TransformersModel { class, config, .. } = TransformersModel::new(&model, &heads, 6, 1000, 0);
    assert_eq!(
        (class, &config["architectures"], &config["model_type"]),
        ("BertForPreTraining", &json!(["BertForPreTraining"]), &json!("bert"))
    );
    assert_eq!(config["num_hidden_layers"], 6);
    assert_eq!(config["layer_norm_eps"], 1e-12);
    assert_eq!(config["pad_token_id"], 0);
    for (norm, name) in [(Norm::Post, "BertForMaskedLM"), (Norm::Pre, "MegatronBertForMaskedLM")] {
        let alone = TransformersModel::new(&Model { norm, ..model.clone() }, &heads[..1], 6, 1000, 0);
        assert_eq!(alone.config["architectures"], json!([name]));
    }
}

/// The set of heads must not depend on the losses, so that existing checkpoints can still be loaded.
#[test]
fn heads_do_not_depend_on_the_losses() {
    for pair in [Pair::None, Pair::Sop] {
        let objective = Objective { pair, ..Objective::default() };
        let config = RunConfig { objective, ..RunConfig::default() };
        let tensors = Architecture::of_run(&config, 2, 50).tensors();
        assert_eq!(tensors, Architecture::new(&config.model, 2, 50).tensors(), "{pair:?}");
    }
}

#[test]
fn head_costs_scale_with_their_unit() {
    let model = Model { hidden: 8, pad_vocabulary_to: 64, ..Model::default() };
    let network = Network::new(&model, &[], 1, 50);
    let (masked, samples) = (3.0, 2.0);
    let count = |unit| match unit {
        CostUnit::Token => 1e9,
        CostUnit::MaskedToken => masked,
        CostUnit::Sample => samples,
    };
    // The MLM head saves its input, projection, activation and normalization. The sentence-pair head saves its input,
    // the pooler output and two logits.
    assert_eq!(network.head_activation_elements(Head::MaskedLanguage, count), masked * 32.0);
    assert_eq!(network.head_activation_elements(Head::Pair, count), samples * 18.0);
    assert_eq!(network.logits(Head::MaskedLanguage, count), masked * 64.0);
    assert_eq!(network.logits(Head::Pair, count), 0.0);
    // This head computes logits at every token, as in distillation.
    let mut wide = network.clone();
    let mut modules = wide.segments[2].modules.to_vec();
    modules
        .iter_mut()
        .filter(|module| module.unit == CostUnit::MaskedToken)
        .for_each(|module| module.unit = CostUnit::Token);
    wide.segments[2].modules = modules.into();
    assert_eq!(wide.logits(Head::MaskedLanguage, count), 64e9);
}

/// The head of SpanBERT-base: a table of 20 x 200, dense layers of 1736 x 768 and 768 x 768, two normalizations and a bias.
#[test]
fn span_boundary_head_is_an_addition() {
    let (model, masked) = (Model::default(), 3.0);
    let [plain, with] = [&[][..], &[Head::SpanBoundary]].map(|heads| Network::new(&model, heads, 1, 30522));
    let head: u64 = 20 * 200 + (1736 + 1) * 768 + (768 + 1) * 768 + 4 * 768 + 30522;
    assert_eq!(with.parameters() - plain.parameters(), head);
    let count = |unit| if unit == CostUnit::MaskedToken { masked } else { 1e9 };
    // Its input, and the output, the activation and the normalization of each dense layer.
    assert_eq!(with.head_activation_elements(Head::SpanBoundary, count), masked * (1736.0 + 6.0 * 768.0));
    assert_eq!(with.logits(Head::SpanBoundary, count), masked * 30522.0);
    let flops = |network: &Network| network.forward_flops([128].into_iter(), 19);
    assert_eq!(flops(&with) - flops(&plain), 19.0 * 2.0 * 768.0 * (1736.0 + 768.0 + 30522.0));

    let tensors = Architecture::from(with).tensors();
    let own = |tensor: &&Tensor| tensor.head == Some(Head::SpanBoundary);
    let mut names: Vec<&str> = tensors.iter().filter(own).map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "span_boundary.bias",
            "span_boundary.output.LayerNorm.bias",
            "span_boundary.output.LayerNorm.weight",
            "span_boundary.output.dense.bias",
            "span_boundary.output.dense.weight",
            "span_boundary.position_embeddings.weight",
            "span_boundary.transform.LayerNorm.bias",
            "span_boundary.transform.LayerNorm.weight",
            "span_boundary.transform.dense.bias",
            "span_boundary.transform.dense.weight",
        ]
    );
    // Names and groups are stored in checkpoints. All families have the same ones.
    assert!(tensors.iter().filter(own).all(|tensor| tensor.id.module.group() == "span_boundary"));
    let families = [Family::Roberta, Family::XlmRoberta, Family::Albert, Family::Electra, Family::Distilbert];
    for family in families {
        assert!(family.has_span_boundary_head());
        let tensors = Architecture::from(Network::new(&family.model(), &[Head::SpanBoundary], 1, 100)).tensors();
        let mut found: Vec<&str> = tensors.iter().filter(own).map(|tensor| tensor.name.as_str()).collect();
        found.sort_unstable();
        assert_eq!(found, names, "{family}");
        assert!(tensors.iter().all(|tensor| !tensor.name.starts_with('.')), "{family}: a module has no name");
    }
}

/// Layers of ALBERT share weights: a deeper model has no more parameters, but more FLOPs.
#[test]
fn shared_layers_have_the_same_parameters_at_any_depth() {
    let model = Family::Albert.model();
    let networks = [3, 6].map(|layers| Network::new(&model, &[], layers, 50));
    assert_eq!(networks.each_ref().map(Network::layers), [3, 6]);
    assert!(networks.iter().all(Network::shares_layers));
    let [shallow, deep] = networks.map(|network| (network.parameters(), network.forward_flops([128].into_iter(), 19)));
    assert!(shallow.0 == deep.0 && deep.1 > 1.7 * shallow.1, "{shallow:?} {deep:?}");
    let layer = |groups: usize| {
        let network = Network::new(&Model { groups, ..model.clone() }, &[], 5, 50);
        network.segments.iter().filter_map(|segment| segment.layer).collect::<Vec<_>>()
    };
    assert_eq!([layer(0), layer(1), layer(2)], [vec![0, 1, 2, 3, 4], vec![0; 5], vec![0, 0, 0, 1, 1]]);
}

/// Number of parameters of the published base shapes, with a vocabulary of their size.
#[test]
fn base_shapes_have_the_published_sizes() {
    // `sum(parameter.numel() for parameter in model.parameters())` of transformers.
    let published = [
        (Family::Bert, 30_522, 110_106_428),
        // Without the rows of the position table that belong to padding.
        (Family::Roberta, 50_265, 124_697_433 - 2 * 768),
        (Family::XlmRoberta, 250_002, 278_295_186 - 2 * 768),
        (Family::Albert, 30_000, 11_813_810),
        (Family::Electra, 30_522, 33_740_602),
        (Family::Distilbert, 30_522, 66_985_530),
        (Family::Modernbert, 50_368, 149_655_232),
        // With the absolute positions of the enhanced mask decoder.
        (Family::DebertaV2, 128_100, 184_551_780 + 512 * 768),
    ];
    for (family, vocabulary, parameters) in published {
        let model = family.model();
        let architecture = Architecture::new(&model, model.layers, vocabulary);
        assert_eq!(architecture.parameters(), parameters, "{family}");
    }
}

#[test]
fn exported_configurations_are_imported_as_the_same_model() {
    let families = [
        Family::Bert,
        Family::Roberta,
        Family::XlmRoberta,
        Family::Albert,
        Family::Electra,
        Family::Distilbert,
        Family::Modernbert,
        Family::DebertaV2,
    ];
    for family in families {
        let base = Model { initializer_range: 0.03, attention_dropout: Some(0.2), ..family.model() };
        let model = match family {
            // transformers has one dropout for the weights and the output of the attention.
            Family::Modernbert => Model { attention_output_dropout: Some(0.2), local_rotary_base: Some(5e3), ..base },
            Family::DebertaV2 => Model { enhanced_decoder: false, ..base },
            Family::Electra => Model { tied_decoder: false, ..base },
            _ => base,
        };
        let exported = TransformersModel::new(&model, &[], model.layers, 500, 1);
        let imported = ImportedModel::new(&exported.config).unwrap();
        assert_eq!(imported.model, model, "{family}");
        assert_eq!((imported.vocabulary, imported.first_position), (500, exported.first_position), "{family}");
    }
    // Versions of transformers before 5 read neither `layer_types` nor `rope_parameters`.
    for global_attention_every in [1, 2, 3] {
        let base = Model { attention_output_dropout: Some(0.0), rotary_base: Some(5e3), ..Family::Modernbert.model() };
        let local = Model { local_rotary_base: Some(777.0), ..base };
        let attention_window = if global_attention_every == 1 { 0 } else { 64 };
        let model = Model { global_attention_every, attention_window, ..local };
        let mut exported = TransformersModel::new(&model, &[], model.layers, 500, 1).config;
        let keys = exported.as_object_mut().unwrap();
        assert!(keys.remove("layer_types").is_some() && keys.remove("rope_parameters").is_some());
        assert_eq!(ImportedModel::new(&exported).unwrap().model, model);
    }
    let old = ImportedModel::new(&json!({"model_type": "modernbert", "local_rope_theta": null})).unwrap();
    assert_eq!((old.model.rotary_base, old.model.local_rotary_base), (Some(160_000.0), None));
    let megatron = Model { norm: Norm::Pre, ..Model::default() };
    let exported = TransformersModel::new(&megatron, &[], 12, 500, 0);
    assert_eq!(ImportedModel::new(&exported.config).unwrap().model, megatron);
}

#[test]
fn values_of_other_models_are_not_imported() {
    for (config, message) in [
        (json!({}), "model_type is null; expected bert,"),
        (json!({"model_type": "bert", "hidden_size": -1}), "hidden_size is -1; expected a whole number below 2^31"),
        (json!({"model_type": "bert", "is_decoder": true}), "is_decoder is true; expected false"),
        (
            json!({"model_type": "bert", "layer_norm_eps": "x"}),
            "layer_norm_eps is \"x\"; expected a number of at least 0",
        ),
        (json!({"model_type": "roberta", "max_position_embeddings": 2}), "expected more than pad_token_id + 1 = 2"),
        (json!({"model_type": "deberta-v2"}), "relative_attention is false; expected true"),
        (
            json!({"model_type": "modernbert", "embedding_dropout": 0.1}),
            "embedding_dropout is 0.1; expected mlp_dropout = 0",
        ),
        (
            json!({"model_type": "modernbert", "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"], "num_hidden_layers": 4}),
            "expected 4 layers, with full_attention in layer 0 and at regular distances",
        ),
        (json!({"model_type": "modernbert", "layer_types": []}), "expected 22 layers"),
        (json!({"model_type": "modernbert", "classifier_activation": "silu"}), "expected \"gelu\""),
        (
            json!({"model_type": "modernbert", "rope_scaling": {"factor": 2.0}}),
            "rope_scaling is {\"factor\":2.0}; expected null",
        ),
    ] {
        let error = ImportedModel::new(&config).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
