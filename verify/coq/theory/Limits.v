(** α → ∞: from the limits of the attention to the limit of the layer.

    Statements:
      layer_limit       where every head's attention to one token t(h) tends to 1, and all else to 0,
                        MHSA(X) tends to b_out + Σ_h X_{t(h)} W_val^h W_out^h
      softmax_sharpen   softmax(α·s) tends to one-hot at the key that scores strictly best
      sharpen_limit     a layer without content terms whose head h has its strictly best key at q + τ_h
                        tends to the convolution of its taps as all its v_h are multiplied by α → ∞ *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Attention Require Import Definitions Sums Softmax Lemma2 Layers.
Import ListNotations.
Open Scope R_scope.

Lemma is_lim_sum {A} (l : list A) (F : R -> A -> R) (y : A -> R) :
  (forall x, In x l -> is_lim (fun α => F α x) p_infty (y x)) ->
  is_lim (fun α => sum l (F α)) p_infty (sum l y).
Proof.
  induction l as [|a l IH]; intros E; [exact (is_lim_const 0 p_infty)|].
  apply (is_lim_plus (fun α => F α a) (fun α => sum l (F α)) p_infty (y a) (sum l y)); [| |reflexivity].
  - apply E; left; reflexivity.
  - apply IH; intros x Hx; apply E; right; exact Hx.
Qed.

(** The limit of a layer whose scores depend on α, and nothing else of it. *)
Theorem layer_limit {H} (L : R -> layer H) hs d_in (M : H -> matrix) b (t : H -> position) G X q j :
  (forall α, heads (L α) = hs /\ D_in (L α) = d_in /\ b_out (L α) j = b) ->
  (forall α h i, In h hs -> (i < d_in)%nat -> value_output (L α) h i j = M h i j) ->
  NoDup G -> (forall h, In h hs -> In (t h) G) ->
  (forall h, In h hs -> forall k, In k G ->
     is_lim (fun α => attention (L α) G h X q k) p_infty (Finite (if position_eq_dec k (t h) then 1 else 0))) ->
  is_lim (fun α => attend (L α) G X q j) p_infty (b + sum hs (fun h => row_times d_in (X (t h)) (M h) j)).
Proof.
  intros EL EM N T lim.
  assert (C : forall (F : R -> R) (y c : R), is_lim F p_infty y -> is_lim (fun α => F α * c) p_infty (y * c)).
  { intros F y c E; apply (is_lim_scal_r F c p_infty y E). }
  apply is_lim_ext with (fun α => b + sum hs (fun h =>
    row_times d_in (fun i => sum G (fun k => attention (L α) G h X q k * X k i)) (M h) j)).
  { intros α; destruct (EL α) as (Eh & Ei & Eb); rewrite attend_heads, Eh, Ei, Eb; f_equal; apply sum_ext; intros h Ih.
    apply sum_below_ext; intros i Hi; rewrite EM by assumption; reflexivity. }
  apply (is_lim_plus (fun _ => b) _ p_infty b (sum hs (fun h => row_times d_in (X (t h)) (M h) j)));
    [apply is_lim_const| |reflexivity].
  apply is_lim_sum; intros h Ih; unfold row_times, sum_below; apply is_lim_sum; intros i _; apply C.
  assert (I0 : In (t h) G) by (apply T, Ih).
  replace (X (t h) i) with (sum G (fun k => (if position_eq_dec k (t h) then 1 else 0) * X k i)).
  - apply (is_lim_sum G (fun α k => attention (L α) G h X q k * X k i)); intros k Ik; apply C; apply (lim h Ih k Ik).
  - rewrite (sum_single G (t h)); [|exact N|exact I0|].
    + destruct (position_eq_dec (t h) (t h)); [ring|congruence].
    + intros k _ D; destruct (position_eq_dec k (t h)); [congruence|ring].
Qed.

(** A strict maximum over a finite list leaves a gap. *)
Lemma gap_exists {A} (G : list A) (s : A -> R) k0 : (forall k, In k G -> k <> k0 -> s k < s k0) ->
  exists γ, 0 < γ /\ forall k, In k G -> k <> k0 -> γ <= s k0 - s k.
Proof.
  induction G as [|a G IH]; intros best; [exists 1; split; [lra|intros k []]|].
  destruct IH as (γ & Hγ & gap); [intros k Ik; apply best; right; exact Ik|].
  destruct (Rlt_dec (s a) (s k0)) as [La|La].
  - exists (Rmin γ (s k0 - s a)); split; [apply Rmin_pos; lra|].
    intros k [<-|Ik] D; [apply Rmin_r|]; eapply Rle_trans; [apply Rmin_l|apply gap; assumption].
  - exists γ; split; [exact Hγ|]; intros k [<-|Ik] D; [|apply gap; assumption].
    specialize (best a (or_introl eq_refl) D); contradiction.
Qed.

(** softmax(α·s) tends to one-hot at the key that scores strictly best. *)
Theorem softmax_sharpen {A} (G : list A) (s : A -> R) k0 : NoDup G -> In k0 G ->
  (forall k, In k G -> k <> k0 -> s k < s k0) ->
  is_lim (fun α => softmax G (fun k => α * s k) k0) p_infty 1 /\
  forall k, In k G -> k <> k0 -> is_lim (fun α => softmax G (fun k => α * s k) k) p_infty 0.
Proof.
  intros N I best; destruct (gap_exists G s k0 best) as (γ & Hγ & gap).
  destruct (softmax_limit G (fun β k => β / γ * s k) k0 N I) as [L1 L0].
  { intros β k Hβ Ik D; specialize (gap k Ik D).
    replace (β / γ * s k0 - β / γ * s k) with (β / γ * (s k0 - s k)) by (unfold Rdiv; ring).
    replace β with (β / γ * γ) at 1 by (field; lra); apply Rmult_le_compat_l; [|exact gap].
    left; apply Rdiv_lt_0_compat; assumption. }
  (* put β = γ·α *)
  assert (change : forall (F : R -> R) (y : R), is_lim F p_infty y -> is_lim (fun α => F (γ * α)) p_infty y).
  { intros F y E; apply (is_lim_comp F (fun α => γ * α) p_infty y p_infty); [exact E| |exists 0; intros; discriminate].
    replace p_infty with (Rbar_mult γ p_infty) at 2.
    - apply (is_lim_scal_l (fun α => α)), is_lim_id.
    - simpl; destruct (Rle_dec 0 γ) as [Hle|]; [|lra]; destruct (Rle_lt_or_eq_dec 0 γ Hle); [reflexivity|lra]. }
  assert (E : forall k α, softmax G (fun k => γ * α / γ * s k) k = softmax G (fun k => α * s k) k).
  { intros k α; unfold softmax; replace (γ * α / γ) with α by (field; lra); reflexivity. }
  split.
  - apply is_lim_ext with (2 := change _ _ L1); intros α; apply E.
  - intros k Ik D; apply is_lim_ext with (2 := change _ _ (L0 k Ik D)); intros α; apply E.
Qed.

(** The layer with every v_h multiplied by α. *)
Definition sharpen {H} (α : R) (L : layer H) : layer H := {|
  D_in := D_in L; D_k := D_k L; D_p := D_p L; D_h := D_h L; D_out := D_out L;
  heads := heads L;
  parameters := fun h => let w := parameters L h in {|
    W_qry := W_qry w; W_key := W_key w; W_key_pos := W_key_pos w;
    u := u w; v := fun i => α * v w i;
    W_val := W_val w; W_out := W_out w |};
  r := r L;
  b_out := b_out L |}.

Lemma score_sharpen {H} α (L : layer H) h X q k : content_free L h ->
  score (sharpen α L) h X q k = α * score L h X q k.
Proof.
  intros C; rewrite (read_back (sharpen α L) h) by exact C; rewrite read_back by exact C; simpl.
  unfold dot, row_times, sum_below; rewrite <- sum_scal; apply sum_ext; intros i _.
  rewrite <- Rmult_assoc, <- sum_scal; f_equal; apply sum_ext; intros; ring.
Qed.

(** A layer without content terms, whose head h has its strictly best key at q + f(h), tends to the convolution
    whose taps are its own: at every shift the sum of the matrices W_val W_out of the heads that look there. *)
Theorem sharpen_limit {H} (L : layer H) (f : H -> position) Δ G X q j :
  NoDup Δ -> NoDup G -> targets_on G q Δ -> (forall h, In h (heads L) -> In (f h) Δ) ->
  (forall h, In h (heads L) -> content_free L h) ->
  (forall h k, In h (heads L) -> In k G -> k <> add q (f h) -> score L h X q k < score L h X q (add q (f h))) ->
  is_lim (fun α => attend (sharpen α L) G X q j) p_infty (conv (D_in L) Δ (tap L f) (b_out L) X q j).
Proof.
  intros NΔ N T I C best; unfold conv; rewrite <- (heads_as_taps L f Δ X q j NΔ I).
  apply (layer_limit (fun α => sharpen α L) (heads L) (D_in L) (value_output L) (b_out L j) (fun h => add q (f h)));
    [intros; repeat split|reflexivity|exact N|intros h Ih; apply T, I, Ih|].
  intros h Ih k Ik.
  destruct (softmax_sharpen G (fun k => score L h X q k) (add q (f h)) N (T _ (I h Ih))) as [L1 L0].
  { intros k' Ik' D; apply best; assumption. }
  assert (E : forall k α, In k G -> softmax G (fun k => α * score L h X q k) k = attention (sharpen α L) G h X q k).
  { intros k' α Ik'; apply softmax_ext; [|exact Ik']; intros; symmetry; apply score_sharpen, C, Ih. }
  destruct (position_eq_dec k (add q (f h))) as [->|D].
  - apply is_lim_ext with (2 := L1); intros α; apply E, Ik.
  - apply is_lim_ext with (2 := L0 k Ik D); intros α; apply E, Ik.
Qed.
