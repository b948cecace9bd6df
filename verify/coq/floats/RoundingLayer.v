(** The whole certificate: convolution and attention in floating point differ by leak + taps + rounding.

    One output channel j at one query q.  The convolution is any evaluation tree of its terms, bias included.
    The attention is any evaluation of its heads (RoundingHead.v) and then any tree of
    b_out + Σ_h Σ_i W_out^h_{i,j} C^h_i; or W_val W_out is formed first (RoundingWeights.v).  P^h_k are the float weights
    of head h, within λ_h of one-hot.
    Statements, for floats |X| ≤ B on the grid, head by head:
      layer_rounding        |fl(MHSA(X)) − fl(Conv(X))| ≤ leak + taps + rounding, the three summands apart
      sharp_layer_rounding  ≤ taps + rounding, where each head's weights come from a float softmax of scores
                            with a gap g at which the exponential is 0
      final_rounding        the same after both were rounded once more, to a lower precision
      near_one_hot_softmax  λ_h for finite sharpness: twice the leak of the real softmax, plus the distance of
                            the float weights from it
    Not covered: overflow, Winograd and FFT, flush to zero, and mixed precision beyond one final rounding. *)

From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Flocq Require Import Core.
From Attention Require Import Definitions Sums RoundingTree RoundingDot RoundingHead RoundingTaps FloatSoftmax Softmax.
Import ListNotations.
Open Scope R_scope.

(** * The evaluations *)

(** The terms of Conv(X)_{q,j}. *)
Definition conv_terms (d_in : nat) (Δ : list position) (W : position -> matrix) (b : vector) (X : image)
    (q : position) (j : nat) : list (R * R) :=
  (b j, 1) :: flat_map (fun τ => map (fun c => (W τ c j, X (add q τ) c)) (seq 0 d_in)) Δ.

(** The order of the products in P X W_val W_out: every head by itself, then W_out; or W_val W_out, and then one sum. *)
Inductive order : Set := by_heads (o : head_order) | weights_first.

(** The terms of (W_val^h W_out^h)_{c,j}. *)
Definition weight_terms {H} (L : layer H) (j : nat) (h : H) (c : nat) : list (R * R) :=
  map (fun i => (W_val (parameters L h) c i, W_out (parameters L h) i j)) (seq 0 (D_h L)).

(** [attend_computes … P j z]: some evaluation of row q, channel j, of the layer returns z. *)
Definition attend_computes (emin prec : Z) {H} (o : order) (L : layer H) (G : list position) (X : image)
    (P : H -> position -> R) (j : nat) (z : R) : Prop :=
  match o with
  | by_heads o => exists C : H -> nat -> R,
      (forall h i, In h (heads L) -> (i < D_h L)%nat ->
         head_computes emin prec o (D_in L) G X (P h) (fun c => W_val (parameters L h) c i) (C h i)) /\
      computes emin prec
        ((b_out L j, 1) ::
         flat_map (fun h => map (fun i => (W_out (parameters L h) i j, C h i)) (seq 0 (D_h L))) (heads L)) z
  | weights_first => exists M A : H -> nat -> R,
      (forall h c, In h (heads L) -> (c < D_in L)%nat ->
         computes emin prec (weight_terms L j h c) (M h c) /\
         computes emin prec (map (fun k => (P h k, X k c)) G) (A h c)) /\
      computes emin prec
        ((b_out L j, 1) :: flat_map (fun h => map (fun c => (M h c, A h c)) (seq 0 (D_in L))) (heads L)) z
  end.

(** * The figures *)

(** A column of a head: its entry of W_out, the head's λ, its column of W_val. *)
Record column (T : Type) := Column { out_weight : T; row_leak : T; in_weights : list T }.
Arguments Column {T}. Arguments out_weight {T}. Arguments row_leak {T}. Arguments in_weights {T}.

Definition columns {H} (L : layer H) (λ : H -> R) (j : nat) : list (column R) :=
  flat_map (fun h => map (fun i => Column (W_out (parameters L h) i j) (λ h)
    (map (fun c => W_val (parameters L h) c i) (seq 0 (D_in L)))) (seq 0 (D_h L))) (heads L).

Definition conv_weights (d_in : nat) (Δ : list position) (W : position -> matrix) (j : nat) : list R :=
  flat_map (fun τ => map (fun c => W τ c j) (seq 0 d_in)) Δ.

(** Leak: Σ |W_out|·λ·B·Σ|W_val|. *)
Definition leak_figure (B : R) (cols : list (column R)) : R :=
  sum cols (fun c => Rabs (out_weight c) * (row_leak c * (weight (in_weights c) * B))).

(** The rounding of the convolution, of the heads (times W_out), and of the sum over heads. *)
Definition rounding_figure (emin prec : Z) (o : head_order) (N : nat) (B b_conv : R) (ws : list R) (b_att : R)
    (cols : list (column R)) : R :=
  let head c := head_rounding emin prec o N B (row_leak c) (in_weights c) in
  dot_bound emin prec (support (b_conv :: ws)) (Rabs b_conv + weight ws * B)
  + sum cols (fun c => Rabs (out_weight c) * head c)
  + dot_bound emin prec (support (b_att :: map out_weight cols))
      (Rabs b_att + sum cols (fun c =>
         Rabs (out_weight c) * ((1 + row_leak c) * (weight (in_weights c) * B) + head c))).

(** |fl(Conv(X))| *)
Definition size_figure (emin prec : Z) (B b_conv : R) (ws : list R) : R :=
  Rabs b_conv + weight ws * B + dot_bound emin prec (support (b_conv :: ws)) (Rabs b_conv + weight ws * B).

(** The difference after numbers of size M that differ by T are rounded once more, to the format (e_min, p). *)
Definition final_figure (emin prec : Z) (M T : R) : R :=
  T + (roundoff prec * M + half_eta emin) + (roundoff prec * (M + T) + half_eta emin).

Lemma map_flat_map {A C E} (g : C -> E) (h : A -> list C) l : map g (flat_map h l) = flat_map (fun x => map g (h x)) l.
Proof. induction l as [|x l IH]; [reflexivity|]; simpl; rewrite map_app, IH; reflexivity. Qed.

Lemma pairs_magnitude (l : list (R * R)) M : (forall p, In p l -> Rabs (snd p) <= M) ->
  magnitude l <= weight (map fst l) * M.
Proof.
  intros B; replace l with (map (fun p : R * R => (fst p, snd p)) l) at 1; [apply magnitude_map, B|].
  rewrite <- (map_id l) at 2; apply map_ext; intros [w x]; reflexivity.
Qed.

Section Layer.
Variables emin prec : Z.
Context {prec_positive : Prec_gt_0 prec}.

Lemma pairs_rounding l v : computes emin prec l v ->
  Rabs (v - exact l) <= dot_bound emin prec (support (map fst l)) (magnitude l).
Proof.
  intros C; eapply Rle_trans; [exact (dot_rounding emin prec _ _ C)|].
  apply dot_bound_monotone; [|apply magnitude_nonneg|apply Rle_refl].
  replace l with (map (fun p : R * R => (fst p, snd p)) l) at 1; [apply nonzero_support|].
  rewrite <- (map_id l) at 2; apply map_ext; intros [w x]; reflexivity.
Qed.

Context {H : Type}.
Variables (L : layer H) (f : H -> position) (G Δ : list position) (W : position -> matrix) (b : vector).
Variables (X : image) (q : position) (j : nat) (B : R).
Hypothesis distinct : NoDup G.
Hypothesis kernel_distinct : NoDup Δ.
Hypothesis B_nonneg : 0 <= B.
Hypothesis X_floats : forall k c, In k G -> (c < D_in L)%nat -> float emin prec (X k c) /\ Rabs (X k c) <= B.
Hypothesis kernel_on_grid : forall τ, In τ Δ -> In (add q τ) G.
Hypothesis heads_on_grid : forall h, In h (heads L) -> In (add q (f h)) G.

Notation ws := (conv_weights (D_in L) Δ W j).
Notation terms := (conv_terms (D_in L) Δ W b X q j).

(** * The convolution *)

Lemma conv_terms_exact : exact terms = conv (D_in L) Δ W b X q j.
Proof.
  unfold conv_terms; rewrite exact_cons; unfold exact; rewrite sum_flat_map; unfold conv; rewrite Rmult_1_r; f_equal.
  apply sum_ext; intros τ _; rewrite sum_map; unfold row_times, sum_below; apply sum_ext; intros; cbn [fst snd]; ring.
Qed.

Lemma conv_terms_weights : map fst terms = b j :: ws.
Proof.
  unfold conv_terms, conv_weights; simpl map; f_equal; rewrite map_flat_map; apply flat_map_ext; intros τ.
  apply map_map.
Qed.

Lemma conv_terms_magnitude : magnitude terms <= Rabs (b j) + weight ws * B.
Proof.
  assert (E := conv_terms_weights); unfold conv_terms in *; simpl map in E; injection E as E; rewrite <- E.
  rewrite magnitude_cons, Rmult_1_r; apply Rplus_le_compat_l, pairs_magnitude.
  intros p I; apply in_flat_map in I; destruct I as (τ & Iτ & I); apply in_map_iff in I; destruct I as (c & <- & Ic).
  apply in_seq in Ic; apply X_floats; [apply kernel_on_grid, Iτ|lia].
Qed.

Lemma conv_rounding y : computes emin prec terms y ->
  Rabs (y - conv (D_in L) Δ W b X q j) <= dot_bound emin prec (support (b j :: ws)) (Rabs (b j) + weight ws * B).
Proof.
  intros C; rewrite <- conv_terms_exact, <- conv_terms_weights; eapply Rle_trans; [apply pairs_rounding, C|].
  apply dot_bound_monotone; [lia|apply magnitude_nonneg|apply conv_terms_magnitude].
Qed.

(** A bound on the size of the computed convolution. *)
Lemma conv_size y : computes emin prec terms y -> Rabs y <= size_figure emin prec B (b j) ws.
Proof.
  intros C; assert (Y := conv_rounding y C); rewrite <- conv_terms_exact in Y.
  assert (E := exact_magnitude terms); assert (M := conv_terms_magnitude); unfold size_figure.
  replace y with (exact terms + (y - exact terms)) by ring; eapply Rle_trans; [apply Rabs_triang|]; lra.
Qed.

(** What the attention contributes, E, with the difference of the taps and the rounding of the convolution. *)
Lemma both_rounding E y z : computes emin prec terms y -> Rabs (z - one_hot_layer L f j X q) <= E ->
  Rabs (z - y) <= E + taps_difference L f Δ W b j B
    + dot_bound emin prec (support (b j :: ws)) (Rabs (b j) + weight ws * B).
Proof.
  intros Cy Z; assert (Y := conv_rounding y Cy).
  assert (T : Rabs (one_hot_layer L f j X q - conv (D_in L) Δ W b X q j) <= taps_difference L f Δ W b j B).
  { apply (taps_bound L f Δ W b j X q B kernel_distinct); intros τ c I Hc; apply nodup_In, in_app_or in I;
    destruct I as [I|I].
    - apply X_floats; [apply kernel_on_grid, I|exact Hc].
    - apply in_map_iff in I; destruct I as (h & <- & Ih); apply X_floats; [apply heads_on_grid, Ih|exact Hc]. }
  replace (z - y) with (z - one_hot_layer L f j X q + (one_hot_layer L f j X q - conv (D_in L) Δ W b X q j)
    + - (y - conv (D_in L) Δ W b X q j)) by ring.
  eapply Rle_trans; [apply Rabs_triang|]; rewrite Rabs_Ropp.
  assert (Q := Rabs_triang (z - one_hot_layer L f j X q) (one_hot_layer L f j X q - conv (D_in L) Δ W b X q j)).
  lra.
Qed.

(** * The attention *)

Section Attention.
Variables (o : head_order) (P : H -> position -> R) (λ : H -> R).
Hypothesis rows : forall h, In h (heads L) -> near_one_hot (λ h) G (P h) (add q (f h)).

Notation cols := (columns L λ j).
Notation head_error c := (head_rounding emin prec o (length G) B (row_leak c) (in_weights c)).
Notation col h i := (Column (W_out (parameters L h) i j) (λ h)
  (map (fun c => W_val (parameters L h) c i) (seq 0 (D_in L)))).

(** A sum over the columns is one over heads and their entries. *)
Lemma sum_columns (g : column R -> R) : sum cols g = sum (heads L) (fun h => sum_below (D_h L) (fun i => g (col h i))).
Proof. unfold columns; rewrite sum_flat_map; apply sum_ext; intros h _; apply sum_map. Qed.

Lemma attention_rounding z : attend_computes emin prec (by_heads o) L G X P j z ->
  Rabs (z - one_hot_layer L f j X q) <= leak_figure B cols + sum cols (fun c => Rabs (out_weight c) * head_error c)
    + dot_bound emin prec (support (b_out L j :: map out_weight cols))
        (Rabs (b_out L j) + sum cols (fun c => Rabs (out_weight c) * ((1 + row_leak c) * (weight (in_weights c) * B) +
        head_error c))).
Proof.
  intros (C & HC & Z).
  set (value := fun h i => row_times (D_in L) (X (add q (f h))) (W_val (parameters L h)) i).
  assert (EC : forall h i, In h (heads L) -> (i < D_h L)%nat ->
    Rabs (C h i - value h i) <= λ h * (weight (in_weights (col h i)) * B) + head_error (col h i)).
  { intros h i Ih Hi; exact (head_rounds emin prec G (P h) (add q (f h)) (λ h) distinct (heads_on_grid h Ih) (rows h Ih)
      o (D_in L) X (fun c => W_val (parameters L h) c i) B (C h i) B_nonneg X_floats (HC h i Ih Hi)). }
  assert (EV : forall h i, In h (heads L) -> Rabs (value h i) <= weight (in_weights (col h i)) * B).
  { intros h i Ih; unfold value, row_times, sum_below.
    rewrite (sum_ext _ _ (fun c => W_val (parameters L h) c i * X (add q (f h)) c)) by (intros; ring).
    apply weighted_sum; intros c Ic; apply in_seq in Ic; apply X_floats; [apply heads_on_grid, Ih|lia]. }
  cbn [row_leak in_weights] in EC, EV.
  set (l := flat_map (fun h => map (fun i => (W_out (parameters L h) i j, C h i)) (seq 0 (D_h L))) (heads L)) in *.
  assert (Wl : map fst ((b_out L j, 1) :: l) = b_out L j :: map out_weight cols).
  { simpl map; f_equal; unfold l, columns; rewrite !map_flat_map; apply flat_map_ext; intros h; rewrite !map_map;
    reflexivity. }
  assert (R := pairs_rounding _ _ Z); rewrite Wl in R.
  assert (Xl : exact ((b_out L j, 1) :: l)
    = b_out L j + sum (heads L) (fun h => sum_below (D_h L) (fun i => W_out (parameters L h) i j * C h i))).
  { rewrite exact_cons, Rmult_1_r; f_equal; unfold l, exact; rewrite sum_flat_map; apply sum_ext; intros h _;
    apply sum_map. }
  assert (Ml : magnitude ((b_out L j, 1) :: l) <= Rabs (b_out L j) + sum cols (fun c =>
    Rabs (out_weight c) * ((1 + row_leak c) * (weight (in_weights c) * B) + head_error c))).
  { rewrite magnitude_cons, Rmult_1_r; apply Rplus_le_compat_l; rewrite sum_columns; unfold l, magnitude.
    rewrite sum_flat_map; apply sum_le; intros h Ih; rewrite sum_map; apply sum_le; intros i Ii; apply in_seq in Ii.
    cbn [fst snd out_weight row_leak in_weights]; rewrite Rabs_mult; apply Rmult_le_compat_l; [apply Rabs_pos|].
    specialize (EC h i Ih ltac:(lia)); specialize (EV h i Ih).
    replace (C h i) with (value h i + (C h i - value h i)) by ring; eapply Rle_trans; [apply Rabs_triang|]; lra. }
  assert (D : Rabs (exact ((b_out L j, 1) :: l) - one_hot_layer L f j X q)
    <= leak_figure B cols + sum cols (fun c => Rabs (out_weight c) * head_error c)).
  { rewrite Xl; unfold one_hot_layer, leak_figure; rewrite !sum_columns.
    match goal with |- Rabs (?p + ?x - (?p + ?y)) <= _ => replace (p + x - (p + y)) with (x - y) by ring end.
    rewrite <- sum_minus, <- sum_plus; eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros h Ih.
    unfold sum_below; rewrite <- sum_minus, <- sum_plus; eapply Rle_trans; [apply sum_abs|]; apply sum_le; intros i Ii.
    apply in_seq in Ii; cbn [out_weight row_leak in_weights]; fold (value h i).
    replace (W_out (parameters L h) i j * C h i - W_out (parameters L h) i j * value h i)
      with (W_out (parameters L h) i j * (C h i - value h i)) by ring.
    rewrite Rabs_mult, <- Rmult_plus_distr_l; apply Rmult_le_compat_l; [apply Rabs_pos|]; apply EC; [exact Ih|lia]. }
  assert (DB := dot_bound_monotone emin prec _ _ _ _ (Nat.le_refl (support (b_out L j :: map out_weight cols)))
    (magnitude_nonneg _) Ml).
  replace (z - one_hot_layer L f j X q)
    with (z - exact ((b_out L j, 1) :: l) + (exact ((b_out L j, 1) :: l) - one_hot_layer L f j X q)) by ring.
  eapply Rle_trans; [apply Rabs_triang|]; lra.
Qed.

(** |fl(MHSA(X)) − fl(Conv(X))| ≤ leak + taps + rounding. *)
Theorem layer_rounding y z : computes emin prec terms y -> attend_computes emin prec (by_heads o) L G X P j z ->
  Rabs (z - y) <= leak_figure B cols + taps_difference L f Δ W b j B
    + rounding_figure emin prec o (length G) B (b j) ws (b_out L j) cols.
Proof.
  intros Cy Cz; assert (R := both_rounding _ y z Cy (attention_rounding z Cz)); unfold rounding_figure; cbv zeta; lra.
Qed.

End Attention.

(** * Sharp layers *)

(** Exactly one-hot weights leak nothing. *)
Lemma one_hot_near P k0 : one_hot G P k0 -> near_one_hot 0 G P k0.
Proof.
  intros [P0 PN]; unfold near_one_hot; rewrite sum_zero; [apply Rle_refl|]; intros k I; unfold unit_row.
  destruct (position_eq_dec k k0) as [->|N]; [rewrite P0|rewrite (PN k I N)]; rewrite Rminus_diag_eq by reflexivity;
    apply Rabs_R0.
Qed.

Lemma leak_figure_0 : leak_figure B (columns L (fun _ => 0) j) = 0.
Proof.
  unfold leak_figure, columns; rewrite sum_flat_map; apply sum_zero; intros h _; rewrite sum_map; apply sum_zero.
  intros i _; cbn [row_leak]; ring.
Qed.

Lemma sharp_rows expf g (s P : H -> position -> R) : (emin <= 0)%Z -> 0 < g -> float emin prec g ->
  sharp_exp emin prec g expf ->
  (forall h, In h (heads L) -> gap g G (s h) (add q (f h)) /\ float_softmax emin prec expf G (s h) (P h)) ->
  forall h, In h (heads L) -> near_one_hot 0 G (P h) (add q (f h)).
Proof.
  intros E0 G0 Gf Ex S h Ih; destruct (S h Ih) as [Sg Sf]; apply one_hot_near.
  exact (softmax_one_hot emin prec E0 expf G (s h) (add q (f h)) g distinct (heads_on_grid h Ih) G0 Gf Ex Sg (P h) Sf).
Qed.

(** |fl(MHSA(X)) − fl(Conv(X))| ≤ taps + rounding: the computed scores of every head have their maximum at
    q + f(h), a float g > 0 or more above every other, where the exponential is 0. *)
Theorem sharp_layer_rounding o expf g (s P : H -> position -> R) y z : (emin <= 0)%Z -> 0 < g -> float emin prec g ->
  sharp_exp emin prec g expf ->
  (forall h, In h (heads L) -> gap g G (s h) (add q (f h)) /\ float_softmax emin prec expf G (s h) (P h)) ->
  computes emin prec terms y -> attend_computes emin prec (by_heads o) L G X P j z ->
  Rabs (z - y) <= taps_difference L f Δ W b j B
    + rounding_figure emin prec o (length G) B (b j) ws (b_out L j) (columns L (fun _ => 0) j).
Proof.
  intros E0 G0 Gf Ex S Cy Cz; assert (N := sharp_rows expf g s P E0 G0 Gf Ex S).
  assert (R := layer_rounding o P (fun _ => 0) N y z Cy Cz); rewrite leak_figure_0 in R; lra.
Qed.

End Layer.

(** * One final rounding *)

(** Both outputs rounded once more, to the lower precision in which they are stored. *)
Theorem final_rounding emin prec M T y z y' z' : (0 < prec)%Z -> Rabs (z - y) <= T -> Rabs y <= M ->
  rounds emin prec y y' -> rounds emin prec z z' -> Rabs (z' - y') <= final_figure emin prec M T.
Proof.
  intros Hp D HM Ry Rz; assert (Prec_gt_0 prec) by exact Hp; apply rounds_error in Ry, Rz;
    assert (U := @roundoff_positive prec).
  assert (Z : Rabs z <= M + T) by (replace z with (y + (z - y)) by ring; eapply Rle_trans; [apply Rabs_triang|lra]).
  assert (roundoff prec * Rabs y <= roundoff prec * M) by (apply Rmult_le_compat_l; lra).
  assert (roundoff prec * Rabs z <= roundoff prec * (M + T)) by (apply Rmult_le_compat_l; lra).
  replace (z' - y') with (z - y + (z' - z) + - (y' - y)) by ring.
  assert (T1 := Rabs_triang (z - y + (z' - z)) (- (y' - y))); assert (T2 := Rabs_triang (z - y) (z' - z)).
  rewrite Rabs_Ropp in T1; unfold final_figure; lra.
Qed.

(** * More tokens *)

(** The rounding figure of N tokens covers every smaller grid. *)
Lemma head_rounding_monotone emin prec o N N' B λ w : (N <= N')%nat -> 0 <= B -> 0 <= λ ->
  0 <= head_rounding emin prec o N B λ w <= head_rounding emin prec o N' B λ w.
Proof.
  intros HN HB Hλ; assert (W := weight_nonneg w); assert (WB : 0 <= weight w * B) by (apply Rmult_le_pos; assumption).
  assert (M : forall A, 0 <= A -> 0 <= mixing emin prec λ N A <= mixing emin prec λ N' A).
  { intros A HA; split; [apply mixing_nonneg, HA|]; unfold mixing; destruct (Req_EM_T λ 0); [apply Rle_refl|].
    apply dot_bound_monotone; [exact HN|exact HA|apply Rle_refl]. }
  destruct o; unfold head_rounding; cbv zeta.
  - assert (E := dot_bound_nonneg emin prec (support w) _ WB);
    assert (0 <= (1 + λ) * dot_bound emin prec (support w) (weight w * B)).
    { apply Rmult_le_pos; lra. }
    specialize (M ((1 + λ) * (weight w * B + dot_bound emin prec (support w) (weight w * B)))).
    destruct M; [apply Rmult_le_pos; lra|lra].
  - assert (LB : 0 <= (1 + λ) * B) by (apply Rmult_le_pos; lra); destruct (M _ LB) as [M0 M1].
    assert (A0 : 0 <= weight w * ((1 + λ) * B + mixing emin prec λ N ((1 + λ) * B))) by (apply Rmult_le_pos; lra).
    assert (weight w * mixing emin prec λ N ((1 + λ) * B) <= weight w * mixing emin prec λ N' ((1 + λ) * B)).
    { apply Rmult_le_compat_l; assumption. }
    split; [apply Rplus_le_le_0_compat; [apply Rmult_le_pos; assumption|apply dot_bound_nonneg, A0]|].
    apply Rplus_le_compat; [assumption|]; apply dot_bound_monotone; [lia|exact A0|lra].
Qed.

Lemma rounding_figure_monotone emin prec o N N' B b ws b' cols : (N <= N')%nat -> 0 <= B ->
  (forall c, In c cols -> 0 <= row_leak c) ->
  rounding_figure emin prec o N B b ws b' cols <= rounding_figure emin prec o N' B b ws b' cols.
Proof.
  intros HN HB Hλ; unfold rounding_figure; cbv zeta.
  assert (M := fun c I => head_rounding_monotone emin prec o N N' B (row_leak c) (in_weights c) HN HB (Hλ c I)).
  apply Rplus_le_compat; [apply Rplus_le_compat_l, sum_le; intros c I; apply Rmult_le_compat_l;
    [apply Rabs_pos|apply M, I]|].
  apply dot_bound_monotone; [lia| |].
  - apply Rplus_le_le_0_compat; [apply Rabs_pos|]; apply sum_nonneg; intros c I; apply Rmult_le_pos; [apply Rabs_pos|].
    apply Rplus_le_le_0_compat; [|apply M, I]; specialize (Hλ c I); apply Rmult_le_pos; [lra|].
    apply Rmult_le_pos; [apply weight_nonneg|exact HB].
  - apply Rplus_le_compat_l, sum_le; intros c I; apply Rmult_le_compat_l; [apply Rabs_pos|]; destruct (M c I); lra.
Qed.

(** * Finite sharpness *)

(** λ = 2·leak + ρ for float weights that differ from the real softmax of s by ρ in sum. *)
Theorem near_one_hot_softmax (G : list position) (s P : position -> R) k0 ρ : NoDup G -> In k0 G ->
  sum G (fun k => Rabs (P k - softmax G s k)) <= ρ -> near_one_hot (2 * leak G s k0 + ρ) G P k0.
Proof.
  intros N I D; unfold near_one_hot.
  assert (L : sum G (fun k => Rabs (softmax G s k - unit_row k0 k)) = 2 * leak G s k0).
  { destruct (sum_split G k0 (fun k => Rabs (softmax G s k - unit_row k0 k)) I) as (G' & Pm & ->).
    assert (N' := N); apply (Permutation_NoDup Pm) in N'; inversion N' as [|? ? Nk _]; subst.
    rewrite (sum_ext G' _ (softmax G s)).
    - rewrite <- (leak_others G s k0 G' Pm).
      assert (U : Rabs (softmax G s k0 - unit_row k0 k0) = leak G s k0); [|lra].
      unfold unit_row; destruct (position_eq_dec k0 k0); [|congruence].
      rewrite Rabs_minus_sym; apply Rabs_pos_eq, leak_nonneg, I.
    - intros k Ik; unfold unit_row; destruct (position_eq_dec k k0) as [->|]; [contradiction|].
      rewrite Rminus_0_r; apply Rabs_pos_eq; left; apply softmax_positive.
      apply (Permutation_in k (Permutation_sym Pm)); right; exact Ik. }
  rewrite <- L; eapply Rle_trans; [|apply Rplus_le_compat_l, D]; rewrite <- sum_plus; apply sum_le; intros k _.
  replace (P k - unit_row k0 k) with (softmax G s k - unit_row k0 k + (P k - softmax G s k)) by ring; apply Rabs_triang.
Qed.
